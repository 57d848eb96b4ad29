// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package slot

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// cluster simulates Nomad's API. A test sets the allocations that it shows.
type cluster struct {
	*httptest.Server

	blind  atomic.Bool // lists have no allocations, as for a token without rights
	mu     sync.Mutex
	index  int
	change chan struct{}             // closed by the next change
	states map[string]map[string]any // allocations, by id
	live   map[string]string         // id of the last allocation that got a slot, by slot
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{index: 1, change: make(chan struct{}), states: map[string]map[string]any{}, live: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/agent/self", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"stats":{"client":{"node_id":%q}}}`, nodeID)
	})
	mux.HandleFunc("/v1/acl/token/self", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"AccessorID":"x","Type":"client"}`)
	})
	mux.HandleFunc("/v1/node/"+nodeID+"/allocations", c.list)
	c.Server = httptest.NewServer(mux)
	t.Cleanup(c.Close)
	t.Cleanup(c.CloseClientConnections)
	return c
}

func (c *cluster) list(w http.ResponseWriter, r *http.Request) {
	for c.mu.Lock(); r.URL.Query().Get("index") == strconv.Itoa(c.index); c.mu.Lock() {
		change := c.change
		c.mu.Unlock()
		select {
		case <-change:
		case <-r.Context().Done():
			return
		}
	}
	defer c.mu.Unlock()
	all := []any{}
	for _, a := range c.states {
		if c.blind.Load() {
			break
		}
		all = append(all, a)
	}
	w.Header().Set("X-Nomad-Index", strconv.Itoa(c.index))
	_ = json.NewEncoder(w).Encode(all)
}

// set adds a running allocation with the slot if runs is true, and otherwise ends the slot's last allocation.
func (c *cluster) set(slot string, runs bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if runs {
		c.live[slot] = fmt.Sprintf("00000000-0000-0000-0000-%012d", len(c.states))
	}
	state := map[bool]string{true: "running", false: "complete"}[runs]
	c.states[c.live[slot]] = map[string]any{
		"ID": c.live[slot], "Namespace": "default", "DesiredStatus": "run", "ClientStatus": state,
		"AllocatedResources": map[string]any{"Tasks": map[string]any{"web": map[string]any{"Devices": []any{
			map[string]any{"Type": Type, "DeviceIDs": []string{slot}}}}}},
	}
	c.move()
}

// running returns the slots whose allocation runs.
func (c *cluster) running() (slots []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for slot, id := range c.live {
		if c.states[id]["ClientStatus"] == "running" {
			slots = append(slots, slot)
		}
	}
	return slots
}

func (c *cluster) moved() { c.mu.Lock(); defer c.mu.Unlock(); c.move() }

// move answers the blocking queries. The caller holds c.mu.
func (c *cluster) move() {
	c.index++
	close(c.change)
	c.change = make(chan struct{})
}

// site is a ZFS root, a plugin whose slots are below that root, and an API for the plugin.
type site struct {
	*cluster
	zfsfuse.Pool
	engine *engine.Engine
	file   string // path of the operator's file
	config string
	binary conformance.Binary
}

// newSite returns a site with its own root on a pool.
func newSite(t *testing.T, pool zfsfuse.Pool) *site {
	pool.Root = zfsfusetest.Sub(t, pool, uuid.NewString()[:8])
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must.NoError(t, err)
	s := &site{cluster: newCluster(t), Pool: pool, file: filepath.Join(dir, "dataset.hcl")}
	s.engine = engine.Open(pool.Program, pool.Root)
	text := fmt.Sprintf("zfs = %q\nclass \"fast\" {\n root = %q\n"+
		" slots {\n count = 3\n capacity = \"64MiB\"\n }\n}\n", pool.Program, pool.Root)
	must.NoError(t, os.WriteFile(s.file, []byte(text), 0o600))
	s.config = fmt.Sprintf("file = %q\nsweep = \"700ms\"\ngrace = \"5s\"\nmounts_for_all = true\napi {\n address = %q\n}",
		s.file, s.URL)
	exe, err := os.Executable()
	must.NoError(t, err)
	s.binary = conformance.Binary{Name: "nomad-device-dataset", Exe: exe, Env: map[string]string{roleVar: "plugin"},
		Config: s.config}
	return s
}

// leases returns the leases that the engine lists.
func (s *site) leases(t *testing.T) (all []engine.Dataset) {
	t.Helper()
	datasets, err := s.engine.List(t.Context())
	must.NoError(t, err)
	for _, d := range datasets {
		if filepath.Dir(d.Name) == ".slots" {
			all = append(all, d)
		}
	}
	return all
}

// hasSeen reports whether the plugin has recorded the last allocation that got the slot, or has released the slot.
func (s *site) hasSeen(t *testing.T, slot string) bool {
	s.mu.Lock()
	want := s.live[slot] + "/web"
	s.mu.Unlock()
	for _, d := range s.leases(t) {
		if d.Tags[engine.ID] == slot {
			return d.Tags[engine.Holder] == want
		}
	}
	return true
}

func (s *site) wantSeen(t *testing.T, slot string) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return s.hasSeen(t, slot) }),
		wait.Timeout(30*time.Second), wait.Gap(100*time.Millisecond)), must.Sprint("the plugin has not seen the holder"))
}

// release returns the functions with which the conformance cases use the site.
func (s *site) release() *conformance.Release {
	return &conformance.Release{
		Binary: s.binary,
		Use: func(t *testing.T, r *nomad.ContainerReservation) (kill func()) {
			slot := r.Envs["DATASET_FAST_ID"]
			s.set(slot, true)
			end := use(t, r.Mounts[0].HostPath)
			return func() { end(); s.set(slot, false) }
		},
		Traces: func(t *testing.T, r *nomad.ContainerReservation) (names []string) {
			entries, err := os.ReadDir(r.Mounts[0].HostPath)
			must.NoError(t, err)
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return names
		},
		End: func(t *testing.T, slot string) {
			s.wantSeen(t, slot)
			s.set(slot, false)
		},
		Blind: func(t *testing.T) func() {
			for _, slot := range s.running() {
				s.wantSeen(t, slot)
			}
			s.blind.Store(true)
			s.moved()
			return func() { s.blind.Store(false) }
		},
		Held: func(t *testing.T) (ids []string) {
			for _, d := range s.leases(t) {
				ids = append(ids, d.Tags[engine.ID])
			}
			return ids
		},
	}
}

// use starts a process that mounts dir in its own mount namespace, as a driver does for a task, and writes to it.
func use(t *testing.T, dir string) (kill func()) {
	t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", // as package launch starts tasks
		`mount --bind "$0" /mnt && echo trace > /mnt/trace && echo mounted && exec sleep 1000`, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 100))
	must.NoError(t, err)
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	return kill
}

func TestSlots_Conform(t *testing.T) {
	pool := zfsfusetest.New(t)
	conformance.Device{
		Plugin: func(ctx context.Context, log hclog.Logger) nomad.DevicePlugin {
			return device.New(ctx, log, plugin)
		},
		Config:  newSite(t, pool).config,
		Release: func(t *testing.T) *conformance.Release { return newSite(t, pool).release() },
	}.Test(t)
}

// After a boot of the host nothing is mounted, and tasks restart with the same reservations.
func TestSlots_AreMountedAgainAfterAReboot(t *testing.T) {
	s := newSite(t, zfsfusetest.New(t))
	m := conformance.StartManager(t, s.binary)
	var r *nomad.ContainerReservation
	until := func(what string, f func() error) {
		t.Helper()
		must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(f), wait.Timeout(time.Minute), wait.Gap(100*time.Millisecond)),
			must.Sprint(what))
	}
	until("the reservation", func() (err error) {
		r, err = m.Reserve(group, "fast-00")
		return err
	})
	file := filepath.Join(r.Mounts[0].HostPath, "a")
	must.NoError(t, os.WriteFile(file, []byte("kept"), 0o600))
	name := s.Root + "/" + s.leases(t)[0].Name
	until("the unmount", func() error { return exec.Command(s.Program, "unmount", name).Run() })
	m.KillPlugin()
	until("the mount", func() error {
		text, err := os.ReadFile(file)
		if err == nil && string(text) != "kept" {
			err = fmt.Errorf("got %q", text)
		}
		return err
	})
}
