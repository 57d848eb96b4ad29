// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package holder

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"time"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// View is what one answer of the API has shown.
type View struct {
	Node  string    // its id
	Began time.Time // when the request was sent: what had happened by then is in the view

	// Complete means that nothing was hidden from the token. Otherwise any allocation may
	// be missing.
	Complete bool

	Allocations map[string]Allocation // of this node, by id
}

// Allocation is one that Nomad has given devices of this node.
type Allocation struct {
	Namespace string
	Devices   map[string]string // the ids of its devices, and for each the task's name
	Wanted    bool              // nobody has stopped it
	Ended     bool              // its client says so, or its node is lost
}

// Holders are the ids of allocations that Nomad has given a device, now or before. Live is
// the one of them that may use it now; it is empty if there is none, or more than one.
func (v *View) Holders(device string) (all []string, live string) {
	several := false
	for id, a := range v.Allocations {
		if _, has := a.Devices[device]; !has {
			continue
		}
		all = append(all, id)
		if a.Wanted && !a.Ended {
			several = live != ""
			live = id
		}
		if several {
			return all, ""
		}
	}
	return all, live
}

// allocation is Nomad's, as far as it matters (api.Allocation).
type allocation struct {
	ID, Namespace               string
	ClientStatus, DesiredStatus string
	AllocatedResources          struct {
		Tasks map[string]struct {
			Devices []struct {
				Type      string
				DeviceIDs []string
			}
		}
	}
}

// view asks for the allocations of a node: at once, or when there is a change since index.
func (c *client) view(ctx context.Context, node, kind, index string) (v *View, next string, err error) {
	query := url.Values{}
	limited, cancel := agentapi.Soon(ctx, agentapi.Limit)
	if index != "" {
		query.Set("index", index)
		query.Set("wait", blocked.String())
		cancel()
		// Nomad adds up to a sixteenth
		limited, cancel = context.WithTimeoutCause(ctx, blocked+blocked/16+agentapi.Limit, agentapi.ErrLate)
	}
	defer cancel()
	v = &View{Node: node, Began: time.Now(), Allocations: map[string]Allocation{}}
	next, err = c.Get(limited, "/v1/node/"+node+"/allocations", query, func(d *json.Decoder) error {
		return v.read(d, kind)
	})
	if err == nil {
		v.Complete, err = c.seesAll(ctx)
	}
	return v, next, err
}

// read reads one allocation at a time, since each comes with its whole job.
func (v *View) read(d *json.Decoder, kind string) error {
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return errors.Join(errors.New("it is no list"), err)
	}
	for d.More() {
		var a allocation
		if err := d.Decode(&a); err != nil {
			return err
		}
		if !policy.IsID(a.ID) {
			return errors.New("it has an allocation without an id")
		}
		v.Allocations[a.ID] = a.reduced(kind)
	}
	_, err := d.Token()
	return err
}

func (a *allocation) reduced(kind string) Allocation {
	r := Allocation{Namespace: a.Namespace, Wanted: a.DesiredStatus == "run", Devices: map[string]string{}}
	switch a.ClientStatus {
	case "complete", "failed", "lost":
		r.Ended = true
	}
	for task, resources := range a.AllocatedResources.Tasks {
		for _, group := range resources.Devices {
			for _, id := range group.DeviceIDs {
				if group.Type == kind {
					r.Devices[id] = plain.Line(task, 0)
				}
			}
		}
	}
	return r
}
