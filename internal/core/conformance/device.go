// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"context"
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
	"github.com/zclconf/go-cty/cty/msgpack"
)

// Device is a device plugin with its devices, for the table that every device plugin
// must pass:
//
//	conformance.Device{
//		Plugin: func(ctx context.Context, log hclog.Logger) device.DevicePlugin { return device.New(ctx, log, kind) },
//		Config: `root = "/tmp/tree"`,
//		Unplug: func() { os.Remove(link) }, Plug: func() { os.Symlink(target, link) },
//	}.Test(t)
//
// Nothing else may change the devices meanwhile, and at least one must be healthy.
type Device struct {
	// Plugin makes the plugin, which ends with the context.
	Plugin func(context.Context, hclog.Logger) device.DevicePlugin

	// Config is HCL: the content of the plugin's config block. With it the plugin should
	// find a change soon, and have a grace period of some seconds.
	Config string

	// Unplug removes one device, and Plug brings the same one back. They are nil if that
	// is not possible.
	Unplug, Plug func()

	// Lag is how long it may take until a change is found; 0 means a minute, since test
	// machines are busy.
	Lag time.Duration

	// Measures means that there are statistics of each healthy device.
	Measures bool

	// Release is set for plugins that release their devices.
	Release *Release
}

// Test runs the table over gRPC, as an agent calls the plugin.
func (d Device) Test(t *testing.T) {
	if d.Lag == 0 {
		d.Lag = patience
	}
	t.Run("the plugin names itself, its version and its API", func(t *testing.T) {
		info, err := d.start(t, false).PluginInfo()
		if err != nil {
			t.Fatal(err)
		}
		speaks := slices.Contains(info.PluginApiVersions, device.ApiVersion010)
		if info.Type != base.PluginTypeDevice || info.Name == "" || info.PluginVersion == "" || !speaks {
			t.Errorf("got %+v", info)
		}
	})
	t.Run("a configuration has no effect and can be repeated", d.testConfig)
	t.Run("the first list comes at once and is valid for Nomad", func(t *testing.T) {
		CheckGroups(t, d.next(t, d.stream(t)))
	})
	t.Run("nothing is sent without a change", func(t *testing.T) {
		ch := d.stream(t)
		d.next(t, ch)
		select {
		case r := <-ch:
			t.Errorf("got another list: %s", describe(r.Devices))
		case <-time.After(2 * time.Second):
		}
	})
	t.Run("a new process has the same list", func(t *testing.T) {
		first := d.next(t, d.stream(t))
		if again := d.next(t, d.stream(t)); !reflect.DeepEqual(first, again) {
			t.Errorf("got %s\nthen %s", describe(first), describe(again))
		}
	})
	t.Run("what can't be reserved is refused", d.testRefusals)
	t.Run("a reservation is complete and can be restored", d.testReservations)
	if d.Measures {
		t.Run("statistics have the names of the devices", d.testStats)
	}
	if d.Unplug != nil && d.Plug != nil {
		t.Run("a device is the same after a re-plug", d.testReplug)
	}
	if d.Release != nil {
		d.testRelease(t)
	}
}

// start makes the plugin at the other end of a socket. When the test ends, nothing of
// the plugin may be left.
func (d Device) start(t *testing.T, configure bool) device.DevicePlugin {
	t.Helper()
	hclog.DefaultOutput = io.Discard // go-plugin logs each connection to it
	before := held()
	ctx, cancel := context.WithCancel(context.Background())
	impl := d.Plugin(ctx, hclog.New(&hclog.LoggerOptions{Output: t.Output(), Level: hclog.Debug}))
	client, _ := goplugin.TestPluginGRPCConn(t, false, map[string]goplugin.Plugin{
		base.PluginTypeBase: &base.PluginBase{Impl: impl}, base.PluginTypeDevice: &device.PluginDevice{Impl: impl},
	})
	t.Cleanup(func() {
		client.Close() // which ends the server, too
		cancel()
		var now map[string]int
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if now = held(); now["goroutines"] <= before["goroutines"] && now["files"] <= before["files"] {
				return
			}
		}
		stacks := make([]byte, 1<<20)
		t.Errorf("left: %v, before %v\n%s", now, before, stacks[:runtime.Stack(stacks, true)])
	})
	raw, err := client.Dispense(base.PluginTypeDevice)
	if err != nil {
		t.Fatal(err)
	}
	p := raw.(device.DevicePlugin)
	if configure {
		if err := p.SetConfig(&base.Config{PluginConfig: d.pack(t, p)}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// held counts the resources of the process.
func held() map[string]int {
	files, _ := os.ReadDir("/proc/self/fd")
	return map[string]int{"goroutines": runtime.NumGoroutine(), "files": len(files)}
}

// settled is held when the counts have not changed for a while, because everything
// that calls have begun is over.
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
	schema, err := p.ConfigSchema()
	if err != nil {
		t.Fatal(err)
	}
	block, err := parseHCL(d.Config)
	if err != nil {
		t.Fatal(err)
	}
	value, err := decode(block, schema)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := msgpack.Marshal(value, value.Type())
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func (d Device) stream(t *testing.T) <-chan *device.FingerprintResponse {
	t.Helper()
	ch, err := d.start(t, true).Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func (d Device) next(t *testing.T, ch <-chan *device.FingerprintResponse) []*device.DeviceGroup {
	t.Helper()
	select {
	case r, open := <-ch:
		if !open || r.Error != nil {
			t.Fatalf("the stream ended, after which Nomad drops the plugin for good: %+v", r)
		}
		return r.Devices
	case <-time.After(d.Lag):
		t.Fatalf("nothing was sent within %s", d.Lag)
		panic("unreachable")
	}
}

func (d Device) testConfig(t *testing.T) {
	p := d.start(t, false)
	packed := d.pack(t, p)
	before := settled()
	for range 3 {
		if err := p.SetConfig(&base.Config{PluginConfig: packed}); err != nil {
			t.Fatal(err)
		}
	}
	now := settled()
	more := func() bool { return now["goroutines"] > before["goroutines"] || now["files"] > before["files"] }
	for end := time.Now().Add(patience); more(); now = settled() {
		if time.Now().After(end) {
			t.Fatalf("the plugin has %v, before its configuration %v", now, before)
		}
	}
}

func (d Device) testRefusals(t *testing.T) {
	p := d.start(t, true)
	ch, err := p.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	groups := d.next(t, ch)
	_, id := anyHealthy(t, groups)
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
	p := d.start(t, true)
	ch, err := p.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range d.next(t, ch) {
		for _, one := range g.Devices {
			if one.Healthy {
				r, err := p.Reserve([]string{one.ID})
				if err != nil {
					t.Errorf("%s: %v", one.ID, err)
					continue
				}
				checkReservation(t, one.ID, r)
			}
		}
	}
}

func (d Device) testStats(t *testing.T) {
	p := d.start(t, true)
	ch, err := p.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	groups := d.next(t, ch)
	stats, err := p.Stats(t.Context(), 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var r *device.StatsResponse
		select {
		case r = <-stats:
		case <-time.After(d.Lag):
			t.Fatalf("nothing was measured within %s", d.Lag)
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
	p := d.start(t, true)
	ch, err := p.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := d.next(t, ch)
	d.Unplug()
	plugged := false
	defer func() {
		if !plugged {
			d.Plug()
		}
	}()
	away := d.next(t, ch)
	if len(healthy(away)) >= len(healthy(before)) {
		t.Errorf("got %s without the device, %s with it", describe(away), describe(before))
	}
	for _, g := range away {
		if err := g.Validate(); err != nil {
			t.Error(err)
		}
	}
	d.Plug()
	plugged = true
	// a plugin may see it come piece by piece
	for end := time.Now().Add(d.Lag); ; {
		now := d.next(t, ch)
		if slices.Equal(healthy(now), healthy(before)) {
			CheckGroups(t, now)
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
