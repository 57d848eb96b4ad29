// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// Device describes a device plugin and its devices. Test runs the cases that every device plugin must pass:
//
//	conformance.Device{
//		Plugin: func(ctx context.Context, log hclog.Logger) device.DevicePlugin { return device.New(ctx, log, kind) },
//		Config: `root = "/tmp/tree"`,
//		Unplug: func() { os.Remove(link) }, Plug: func() { os.Symlink(target, link) },
//	}.Test(t)
//
// Nothing else may change the devices during the test, and at least one must be healthy.
type Device struct {
	// Plugin creates the plugin, which must release everything when ctx ends.
	Plugin func(context.Context, hclog.Logger) device.DevicePlugin

	// Config is HCL: the content of the plugin's config block. It should make the plugin detect changes soon, with a grace
	// period of a few seconds.
	Config string

	// Unplug removes one device, and Plug brings the same device back. Set both to nil if that is not possible.
	Unplug, Plug func()

	// Measures is set if each healthy device has statistics.
	Measures bool

	// Release is set if the plugin releases its devices. The test calls it for each case to make separate devices, because
	// these cases run concurrently.
	Release func(*testing.T) *Release
}

// Test runs the cases over gRPC, as an agent calls the plugin.
func (d Device) Test(t *testing.T) {
	t.Run("the plugin reports its name, version and API", func(t *testing.T) {
		info, err := d.start(t).PluginInfo()
		must.NoError(t, err)
		speaks := slices.Contains(info.PluginApiVersions, device.ApiVersion010)
		if info.Type != base.PluginTypeDevice || info.Name == "" || info.PluginVersion == "" || !speaks {
			t.Errorf("got %+v", info)
		}
	})
	t.Run("configuring the plugin starts nothing and can be repeated", d.testConfig)
	t.Run("the first list arrives immediately and is valid for Nomad", func(t *testing.T) {
		_, _, groups := d.list(t)
		checkGroups(t, groups)
	})
	t.Run("nothing is sent without a change", func(t *testing.T) {
		_, ch, _ := d.list(t)
		select {
		case r := <-ch:
			t.Errorf("got another list: %s", describe(r.Devices))
		case <-time.After(2 * time.Second):
		}
	})
	t.Run("a new process of the plugin sends the same list", func(t *testing.T) {
		_, _, first := d.list(t)
		if _, _, again := d.list(t); !reflect.DeepEqual(first, again) {
			t.Errorf("got %s\nthen %s", describe(first), describe(again))
		}
	})
	t.Run("devices that can't be reserved are refused", d.testRefusals)
	t.Run("a reservation is complete and can be restored", d.testReservations)
	if d.Measures {
		t.Run("statistics have the groups and ids of the listed devices", d.testStats)
	}
	if d.Unplug != nil && d.Plug != nil {
		t.Run("a device is the same after a re-plug", d.testReplug)
	}
	if d.Release != nil {
		d.testRelease(t)
	}
}

// start creates a plugin and returns a client that is connected to it over gRPC. At the end of the test, start checks
// that the plugin has left no goroutine and no open file.
func (d Device) start(t *testing.T) device.DevicePlugin {
	t.Helper()
	hclog.DefaultOutput = io.Discard // go-plugin logs each connection to DefaultOutput
	left := leftSince(held())
	ctx, cancel := context.WithCancel(context.Background())
	impl := d.Plugin(ctx, hclog.New(&hclog.LoggerOptions{Output: t.Output(), Level: hclog.Debug}))
	client, _ := goplugin.TestPluginGRPCConn(t, false, map[string]goplugin.Plugin{
		base.PluginTypeBase: &base.PluginBase{Impl: impl}, base.PluginTypeDevice: &device.PluginDevice{Impl: impl},
	})
	t.Cleanup(func() {
		client.Close() // also ends the server
		cancel()
		if what := left(); what != "" {
			stacks := make([]byte, 1<<20)
			t.Errorf("left: %s\n%s", what, stacks[:runtime.Stack(stacks, true)])
		}
	})
	raw, err := client.Dispense(base.PluginTypeDevice)
	must.NoError(t, err)
	return raw.(device.DevicePlugin)
}

// held counts the goroutines and open files of the process.
func held() map[string]int {
	files, _ := os.ReadDir("/proc/self/fd")
	return map[string]int{"goroutines": runtime.NumGoroutine(), "files": len(files)}
}

// leftSince returns a function that waits until the process holds no more goroutines and files than before. If it still
// does after a minute, the function describes the difference.
func leftSince(before map[string]int) func() string {
	return func() string {
		var now map[string]int
		if eventually(patience, func() bool {
			now = held()
			return now["goroutines"] <= before["goroutines"] && now["files"] <= before["files"]
		}) {
			return ""
		}
		return fmt.Sprintf("%v, before %v", now, before)
	}
}

// settled waits until the counts of held have not changed for 0.2 s, and returns them. By then, everything that earlier
// calls have started is over.
func settled() map[string]int {
	now := held()
	end := time.Now().Add(patience)
	for same := 0; same < 20 && time.Now().Before(end); same++ {
		time.Sleep(10 * time.Millisecond)
		if next := held(); !maps.Equal(next, now) {
			now, same = next, 0
		}
	}
	return now
}

// pack encodes the configuration as Nomad's loader does.
func (d Device) pack(t *testing.T, p device.DevicePlugin) []byte {
	t.Helper()
	spec, err := p.ConfigSchema()
	must.NoError(t, err)
	block, err := parseHCL(d.Config)
	must.NoError(t, err)
	packed, errs := schema.Encode(spec, block)
	must.SliceEmpty(t, errs)
	return packed
}

// list starts and configures the plugin. It returns the plugin, the stream of its lists of devices, and the first list.
func (d Device) list(t *testing.T) (device.DevicePlugin, <-chan *device.FingerprintResponse, []*device.DeviceGroup) {
	t.Helper()
	p := d.start(t)
	must.NoError(t, p.SetConfig(&base.Config{PluginConfig: d.pack(t, p)}))
	ch, err := p.Fingerprint(t.Context())
	must.NoError(t, err)
	return p, ch, next(t, ch)
}

func next(t *testing.T, ch <-chan *device.FingerprintResponse) []*device.DeviceGroup {
	t.Helper()
	select {
	case r, open := <-ch:
		if !open || r.Error != nil {
			t.Fatalf("the stream ended, and Nomad would drop the plugin permanently: %+v", r)
		}
		return r.Devices
	case <-time.After(patience):
		t.Fatalf("nothing was sent within %s", patience)
		panic("unreachable")
	}
}

func (d Device) testConfig(t *testing.T) {
	p := d.start(t)
	packed := d.pack(t, p)
	left := leftSince(settled())
	for range 3 {
		must.NoError(t, p.SetConfig(&base.Config{PluginConfig: packed}))
	}
	must.Eq(t, "", left(), must.Sprint("held by the plugin since its configuration"))
}

func (d Device) testRefusals(t *testing.T) {
	p, _, groups := d.list(t)
	must.SliceNotEmpty(t, healthy(groups), must.Sprintf("no healthy device in %s", describe(groups)))
	id := healthy(groups)[0]
	refused := map[string][]string{
		"no device": nil, "an unknown device": {"no-such:device"},
		"a device twice": {id, id}, "one of two": {id, "no-such:device"},
	}
	for _, g := range groups {
		for _, one := range g.Devices {
			if !one.Healthy {
				refused["the unhealthy "+one.ID] = []string{one.ID}
			}
		}
	}
	for what, ids := range refused {
		if r, err := p.Reserve(ids); err == nil || r != nil {
			t.Errorf("%s: got %+v, %v", what, r, err)
		} else if words := err.Error(); strings.Contains(words, "panic") || len(words) < 20 {
			t.Errorf("%s: got %q", what, words)
		}
	}
}

func (d Device) testReservations(t *testing.T) {
	p, _, groups := d.list(t)
	for _, id := range healthy(groups) {
		r, err := p.Reserve([]string{id})
		must.NoError(t, err, must.Sprint(id))
		checkReservation(t, id, r)
	}
}

func (d Device) testStats(t *testing.T) {
	p, _, groups := d.list(t)
	stats, err := p.Stats(t.Context(), 100*time.Millisecond)
	must.NoError(t, err)
	for range 2 {
		var r *device.StatsResponse
		select {
		case r = <-stats:
		case <-time.After(patience):
			t.Fatalf("no statistics were sent within %s", patience)
		}
		got := map[string]bool{}
		for _, g := range r.Groups {
			for id, s := range g.InstanceStats {
				got[g.Vendor+"/"+g.Type+"/"+g.Name+" "+id] = true
				if s == nil || s.Stats == nil || s.Summary == nil || time.Since(s.Timestamp) > time.Minute {
					t.Errorf("%s: got %+v", id, s)
				}
			}
		}
		for _, g := range groups {
			for _, one := range g.Devices {
				if name := g.Vendor + "/" + g.Type + "/" + g.Name + " " + one.ID; one.Healthy && !got[name] {
					t.Errorf("no statistics of %s in %v", name, got)
				}
			}
		}
	}
}

func (d Device) testReplug(t *testing.T) {
	p, ch, before := d.list(t)
	d.Unplug()
	away := next(t, ch)
	if len(healthy(away)) >= len(healthy(before)) {
		t.Errorf("got %s without the device, %s with it", describe(away), describe(before))
	}
	for _, g := range away {
		if err := g.Validate(); err != nil {
			t.Error(err)
		}
	}
	d.Plug()
	// a plugin may detect the device in several steps
	for end := time.Now().Add(patience); ; {
		now := next(t, ch)
		if slices.Equal(healthy(now), healthy(before)) {
			checkGroups(t, now)
			break
		}
		if time.Now().After(end) {
			t.Fatalf("got %s, before %s", describe(now), describe(before))
		}
	}
	for _, id := range healthy(before) {
		if _, err := p.Reserve([]string{id}); err != nil {
			t.Errorf("after the re-plug: %v", err)
		}
	}
}
