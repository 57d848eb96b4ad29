// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"
)

// snapshot is the published state of all devices. It never changes: a newer one replaces it.
type snapshot struct {
	scanned bool  // whether any scan has succeeded
	failure error // error of the last scan, if no scan has succeeded

	groups  []*device.DeviceGroup // as Nomad gets them
	devices map[string]listed     // by id

	newer chan struct{} // closed when a newer snapshot is published
}

// listed is one device of a snapshot.
type listed struct {
	group   tuple
	problem string // empty means healthy
	gone    bool   // vanished, but its grace period has not ended
}

// tuple is the name of a group.
type tuple struct{ vendor, kind, name string }

func (t tuple) String() string { return t.vendor + "/" + t.kind + "/" + t.name }

func (t tuple) compare(o tuple) int {
	return slices.Compare([]string{t.vendor, t.kind, t.name}, []string{o.vendor, o.kind, o.name})
}

func newSnapshot() *snapshot { return &snapshot{newer: make(chan struct{})} }

// publish replaces the snapshot. Only the goroutine that scans calls it.
func (p *Server) publish(s *snapshot) { close(p.current.Swap(s).newer) }

// passing is a temporary error: a later attempt to reserve the devices may succeed.
type passing struct{ error }

// refusal returns the reason why the devices with these ids can't be reserved, or nil if they can. The error is of type
// passing only if all reasons are temporary.
func (s *snapshot) refusal(ids []string) error {
	if !s.scanned && s.failure != nil {
		return passing{fmt.Errorf("devices have not been listed yet: %w", s.failure)}
	}
	if !s.scanned {
		return passing{errors.New("devices have not been listed yet")}
	}
	var wait error
	for _, id := range ids {
		d, known := s.devices[id]
		switch {
		case !known:
			return fmt.Errorf("device %q does not exist or was removed (known devices: %s)", id, s.known())
		case d.problem == "":
		case d.gone:
			wait = passing{fmt.Errorf("device %q is not ready: %s", id, d.problem)}
		default:
			return fmt.Errorf("device %q can't be used: %s", id, d.problem)
		}
	}
	return wait
}

// known lists the known devices for an error message.
func (s *snapshot) known() string {
	const some = 10
	ids := slices.Sorted(maps.Keys(s.devices))
	switch {
	case len(ids) == 0:
		return "none"
	case len(ids) > some:
		return fmt.Sprintf("%s and %d more", strings.Join(ids[:some], ", "), len(ids)-some)
	}
	return strings.Join(ids, ", ")
}
