// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// world is an instance that a test controls.
type world struct {
	mu     sync.Mutex
	groups []Group
	err    error
	broken any           // if it is not nil, scans panic with this value
	hang   chan struct{} // a scan waits for this channel, and ignores its context
	scans  int
	given  [][]string
	refuse error
	envs   map[string]string
}

func (w *world) set(change func(*world)) { w.mu.Lock(); defer w.mu.Unlock(); change(w) }

func (w *world) plug(groups ...Group) { w.set(func(w *world) { w.groups = groups }) }

func (w *world) scanned() int { w.mu.Lock(); defer w.mu.Unlock(); return w.scans }

func (w *world) reserved() int { w.mu.Lock(); defer w.mu.Unlock(); return len(w.given) }

func (w *world) List(context.Context) ([]Group, error) {
	w.mu.Lock()
	w.scans++
	groups, err, broken, hang := slices.Clone(w.groups), w.err, w.broken, w.hang
	w.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if broken != nil {
		panic(broken)
	}
	return groups, err
}

func (w *world) Reserve(_ context.Context, ids []string) (*device.ContainerReservation, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given = append(w.given, ids)
	if w.refuse != nil {
		return nil, w.refuse
	}
	envs := map[string]string{"IDS": strings.Join(ids, ",")}
	maps.Copy(envs, w.envs)
	r := &device.ContainerReservation{Envs: envs}
	for _, id := range ids {
		r.Devices = append(r.Devices, &device.DeviceSpec{HostPath: "/dev/" + id, TaskPath: "/dev/" + id, CgroupPerms: "rw"})
	}
	return r, nil
}

// sticks is a group of devices without problems.
func sticks(name string, ids ...string) Group {
	g := Group{Vendor: "10c4", Type: "zigbee", Name: name,
		Attributes: map[string]*structs.Attribute{"usb_id": structs.NewStringAttribute("10c4:" + name)}}
	for _, id := range ids {
		g.Devices = append(g.Devices, Device{ID: id})
	}
	return g
}

func ill(g Group, problem string) Group {
	for i := range g.Devices {
		g.Devices[i].Problem = problem
	}
	return g
}

// log collects the text of the plugin's log.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(b []byte) (int, error) { l.mu.Lock(); defer l.mu.Unlock(); return l.text.Write(b) }
func (l *log) String() string              { l.mu.Lock(); defer l.mu.Unlock(); return l.text.String() }

// count returns the number of lines with this text.
func (l *log) count(text string) int {
	n := 0
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

type noConfig struct{}

// supplied wraps the test's instance with options that suit most tests.
func supplied(w Instance) *instance {
	return &instance{Instance: w, Options: Options{Period: time.Minute, Settle: 300 * time.Millisecond,
		Grace: 10 * time.Second}}
}

// start returns a configured plugin.
func start(t *testing.T, i *instance) (*Server, *log) {
	t.Helper()
	l := &log{}
	p := New(t.Context(), hclog.New(&hclog.LoggerOptions{Output: l, Level: hclog.Info}), Plugin[noConfig]{Name: "test"})
	p.configure = func([]byte) (*instance, error) { return i, nil }
	must.NoError(t, p.SetConfig(&base.Config{}))
	return p, l
}

// stream opens the fingerprint stream, which ends with the test.
func stream(t *testing.T, p *Server) <-chan *device.FingerprintResponse {
	t.Helper()
	ch, err := p.Fingerprint(t.Context())
	must.NoError(t, err)
	return ch
}

// next waits until all goroutines are blocked, and returns the list that must have arrived by then, in one line.
func next(t *testing.T, ch <-chan *device.FingerprintResponse) string {
	t.Helper()
	return listing(nextGroups(t, ch))
}

func nextGroups(t *testing.T, ch <-chan *device.FingerprintResponse) []*device.DeviceGroup {
	t.Helper()
	synctest.Wait()
	select {
	case r, open := <-ch:
		must.True(t, open, must.Sprintf("the stream ended: %+v", r))
		must.NoError(t, r.Error, must.Sprintf("the stream ended: %+v", r))
		for _, g := range r.Devices {
			test.NoError(t, g.Validate(), test.Sprint("Nomad would drop the plugin"))
		}
		return r.Devices
	default:
		t.Fatal("nothing was sent")
		panic("unreachable")
	}
}

// silent waits until all goroutines are blocked, and fails the test if anything has been sent.
func silent(t *testing.T, ch <-chan *device.FingerprintResponse) {
	t.Helper()
	synctest.Wait()
	select {
	case r, open := <-ch:
		must.True(t, open, must.Sprint("the stream ended"))
		t.Fatalf("got %s", listing(r.Devices))
	default:
	}
}

func listing(groups []*device.DeviceGroup) string {
	var all []string
	for _, g := range groups {
		var devices []string
		for _, d := range g.Devices {
			text := d.ID
			if !d.Healthy {
				text += "!" + d.HealthDesc
			}
			devices = append(devices, text)
		}
		ids := "-"
		if a := g.Attributes["ids"]; a != nil {
			ids = *a.String
		}
		all = append(all, g.Name+"["+strings.Join(devices, " ")+"]="+ids)
	}
	return strings.Join(all, " ")
}

func want(t *testing.T, got, want string) {
	t.Helper()
	test.Eq(t, want, got)
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	test.ErrorContains(t, err, text, test.Sprint("got error"))
}

func toConfig(d *device.DeviceSpec) *drivers.DeviceConfig {
	return &drivers.DeviceConfig{HostPath: d.HostPath, TaskPath: d.TaskPath, Permissions: d.CgroupPerms}
}
