// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Release is the additional input of the cases for plugins that release their devices (device.Releaser). The plugin
// must have a group of at least two healthy devices.
type Release struct {
	// Binary is the plugin's executable: the plugin must be a separate process, because the test kills it. Its grace
	// period should be about two seconds, and the time between its scans less than one second.
	Binary Binary

	// Use uses a reservation as a task does, and leaves traces in it. The returned function ends the use immediately.
	Use func(*testing.T, *device.ContainerReservation) (kill func())

	// Traces returns the traces that earlier calls of Use have left in a reservation.
	Traces func(*testing.T, *device.ContainerReservation) []string

	// End gives the plugin evidence that the holder of a device has ended. Processes may still use the device.
	End func(t *testing.T, id string)

	// Blind hides the evidence from the plugin until the returned function is called. The plugin must get an empty result
	// and no error: an API does this when the plugin's token has lost its permissions. Blind is nil if the plugin queries
	// no such source.
	Blind func(*testing.T) (restore func())

	// Held returns the ids of the devices that have a holder according to the plugin's record.
	Held func(*testing.T) []string
}

// releaser is one case: a plugin and two of its devices.
type releaser struct {
	Release
	*testing.T
	*Manager
	group string
	a, b  string
}

// sweeps is enough time for several sweeps of the plugin.
const sweeps = 2 * time.Second

func (d Device) testRelease(t *testing.T) {
	t.Run("a device that is reserved again is released first", d.releaser(func(r releaser) {
		r.Use(r.T, r.reserve(r.a))()
		must.SliceEmpty(r, r.Traces(r.T, r.reserve(r.a)), must.Sprint("left by the previous holder"))
		r.wantHeldOnce(r.a)
	}))
	t.Run("a reservation waits for a device in use, and delays no other", d.releaser(func(r releaser) {
		kill := r.Use(r.T, r.reserve(r.a))
		_, err := r.Manager.Reserve(r.group, r.a)
		must.ErrorContains(r, err, "in use")
		// try again if a busy machine reserves the other device only after the grace period of about two seconds
		for try := 1; ; try++ {
			waited := make(chan error, 1)
			began := time.Now()
			go func() { _, err := r.Manager.Reserve(r.group, r.a); waited <- err }()
			r.reserve(r.b)
			r.wantHeldOnce(r.a)
			killed := len(waited) == 0
			if killed {
				kill()
			}
			err := <-waited
			if killed && err == nil {
				return
			}
			must.ErrorContains(r, err, "in use")
			must.True(r, try < 20 && time.Since(began) > time.Second, must.Sprint("Reserve did not wait for the device in use"))
			if killed {
				kill = r.Use(r.T, r.reserve(r.a))
			}
		}
	}))
	t.Run("the lease of an ended holder is released when nothing uses the device", d.releaser(func(r releaser) {
		kill := r.Use(r.T, r.reserve(r.a))
		r.reserve(r.b)
		r.End(r.T, r.a)
		time.Sleep(sweeps)
		r.wantHeldOnce(r.a)
		kill()
		r.End(r.T, r.a)
		testsupport.Within(r.T, patience, func() error {
			if held := r.Held(r.T); slices.Contains(held, r.a) {
				return fmt.Errorf("the held devices are %v", held)
			}
			return nil
		})
	}))
	t.Run("a device that is not in use yet stays reserved", d.releaser(func(r releaser) {
		r.reserve(r.a) // for example, the task's image is still being fetched
		time.Sleep(sweeps)
		r.wantHeldOnce(r.a)
	}))
	if d.Release(t).Blind != nil {
		t.Run("missing information is not evidence", d.releaser(func(r releaser) {
			kill := r.Use(r.T, r.reserve(r.a))
			restore := r.Blind(r.T)
			defer restore()
			kill()
			r.reserve(r.b)
			time.Sleep(sweeps)
			r.wantHeldOnce(r.a)
			r.wantHeldOnce(r.b)
			r.KillPlugin() // the next plugin process does not know that there ever was evidence
			time.Sleep(sweeps)
			r.wantHeldOnce(r.a)
			r.wantHeldOnce(r.b)
		}))
	}
	t.Run("a lease outlives its plugin", d.releaser(func(r releaser) {
		kill := r.Use(r.T, r.reserve(r.a))
		r.KillPlugin()
		r.wantHeldOnce(r.a)
		testsupport.Within(r.T, patience, func() error {
			if _, err := r.Manager.Reserve(r.group, r.a); err == nil || !strings.Contains(err.Error(), "in use") {
				return fmt.Errorf("the next plugin does not refuse: %w", err)
			}
			return nil
		})
		kill()
		r.reserveAfterKill()
	}))
	t.Run("a killed plugin leaves nothing half-done", d.releaser(func(r releaser) {
		r.reserve(r.a)
		began := time.Now()
		r.reserve(r.a)
		took := time.Since(began)
		const steps = 5
		for step := range steps { // the kills are spread over a release and the reservation after it
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = r.Manager.Reserve(r.group, r.a) // fails if the plugin is killed before it responds
			}()
			time.Sleep(took * time.Duration(step) / (steps - 1))
			r.KillPlugin()
			<-done
			r.reserveAfterKill()
		}
	}))
}

// releaser returns a subtest with its own plugin.
func (d Device) releaser(test func(releaser)) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		release := d.Release(t)
		r := releaser{Release: *release, T: t, Manager: StartManager(t, release.Binary)}
		testsupport.Within(r.T, patience, func() error {
			for _, g := range r.Resources() {
				if len(g.Instances) >= 2 && g.Instances[0].Healthy {
					r.group, r.a, r.b = g.ID().String(), g.Instances[0].ID, g.Instances[1].ID
					return nil
				}
			}
			return fmt.Errorf("the node has %q", r.Devices())
		})
		test(r)
	}
}

func (r releaser) reserve(id string) *device.ContainerReservation {
	r.Helper()
	reservation, err := r.Manager.Reserve(r.group, id)
	must.NoError(r, err)
	return reservation
}

// reserveAfterKill reserves the device r.a once the next plugin runs, and checks that the reservation has no traces.
func (r releaser) reserveAfterKill() {
	r.Helper()
	var reservation *device.ContainerReservation
	testsupport.Within(r.T, patience, func() (err error) {
		reservation, err = r.Manager.Reserve(r.group, r.a)
		return err
	})
	must.SliceEmpty(r, r.Traces(r.T, reservation), must.Sprint("left by a previous holder"))
	r.wantHeldOnce(r.a)
}

func (r releaser) wantHeldOnce(id string) {
	r.Helper()
	held := r.Held(r.T)
	must.One(r, len(held)-len(slices.DeleteFunc(slices.Clone(held), func(other string) bool { return other == id })),
		must.Sprintf("leases of %s: the held devices are %v", id, held))
}
