// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// usbOptions configure the usb plugin of a node. The machine is simulated: a directory with its own /sys and /dev.
type usbOptions struct {
	root  string // of the simulation; empty: below the node's directory
	grace string // empty: 2s
	more  string // additional configuration, such as device blocks
}

// zigbee is the device block that most tests use. Their tasks run as nobody.
const zigbee = `
device "zigbee" {
  id   = "10c4:ea60"
  mode = "0666"
}
`

func (o usbOptions) config(dir string) string {
	o.more += "rescan = \"200ms\"\n" // the kernel reports no simulated devices
	return fmt.Sprintf("root = %q\nshadow_dir = %q\ngrace = %q\n%s", cmp.Or(o.root, simulation(dir)),
		filepath.Join(dir, "usb-nodes"), cmp.Or(o.grace, "2s"), o.more)
}

// simulation is the directory of a node's simulated machine.
func simulation(dir string) string { return filepath.Join(dir, "usb") }

// stick is a simulated stick that is plugged in.
type stick struct {
	cmd *exec.Cmd

	mu  sync.Mutex // guards out
	out bytes.Buffer
}

// Write gets the output of the simulator, which prints what tasks write to the stick.
func (s *stick) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

func (s *stick) heard() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// plug plugs a stick into a simulation until the end of the test.
func plug(t testing.TB, root string, args ...string) *stick {
	t.Helper()
	must.NoError(t, os.MkdirAll(root, 0o755))
	s := &stick{cmd: exec.Command(usbStick, append(args, root)...)}
	s.cmd.Stdout, s.cmd.Stderr = s, s
	must.NoError(t, s.cmd.Start())
	t.Cleanup(func() { s.unplug(t) })
	testsupport.Within(t, time.Minute, func() error {
		if s.heard() == "" {
			return errors.New("the simulator has printed nothing")
		}
		return nil
	})
	return s
}

// unplug is idempotent.
func (s *stick) unplug(t testing.TB) {
	t.Helper()
	if s.cmd.ProcessState != nil {
		return
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the simulated stick: %v\n%s", err, s.heard())
	}
}

// withDevice requests a device.
func withDevice(name string, edit ...func(*api.RequestedDevice)) func(*api.Job, *api.Task) {
	return func(_ *api.Job, task *api.Task) {
		d := &api.RequestedDevice{Name: name}
		for _, e := range edit {
			e(d)
		}
		task.Resources.Devices = append(task.Resources.Devices, d)
	}
}

func asDriver(name string) func(*api.Job, *api.Task) {
	return func(_ *api.Job, task *api.Task) { task.Driver = name }
}

func asUser(name string) func(*api.Job, *api.Task) {
	return func(_ *api.Job, task *api.Task) { task.User = name }
}

func asService(j *api.Job, _ *api.Task) { j.Type = new("service") }

// devices returns the node's devices as reported by the server: "id", or "id: reason" if unhealthy.
func (n *node) devices(t testing.TB) []string {
	t.Helper()
	node, _, err := n.Client().Nodes().Info(n.id(), nil)
	must.NoError(t, err)
	var found []string
	for _, d := range nomadtest.Devices(node, "") {
		s := d.ID
		if !d.Healthy {
			s += ": " + d.HealthDescription
		}
		found = append(found, s)
	}
	return found
}

// offers waits until the server has exactly these devices. An agent updates its server 5 to 10 s after a change.
func (n *node) offers(t testing.TB, want ...string) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		if got := n.devices(t); !slices.Equal(got, want) {
			return fmt.Errorf("the node has %q, want %q", got, want)
		}
		return nil
	})
}

func (n *node) isUSBPlugin(p proc) bool {
	return len(p.args) == 1 && p.args[0] == filepath.Join(n.PluginDir(), filepath.Base(usbPlugin))
}

// unplaced waits until a job can't be placed, and returns the reasons.
func (n *node) unplaced(t testing.TB, j *api.Job) string {
	t.Helper()
	reg, _, err := n.Client().Jobs().Register(j, nil)
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := agent.Evaluated(ctx, n.Client(), "default", reg.EvalID)
	must.NoError(t, err)
	var why []string
	for _, m := range e.FailedTGAllocs {
		for c := range m.ConstraintFiltered {
			why = append(why, c)
		}
		for d := range m.DimensionExhausted {
			why = append(why, d)
		}
	}
	must.SliceNotEmpty(t, why, must.Sprintf("the evaluation is %s, without a failed group", e.Status))
	slices.Sort(why)
	return strings.Join(why, ", ")
}
