// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"cmp"
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
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// usbOptions configure the usb plugin of a node. The machine is simulated: a directory with its own /sys and /dev.
type usbOptions struct {
	root  string // the simulated machine's directory; empty: below the node's directory
	grace string // empty: 2s
	more  string // additional configuration, such as device blocks
}

// zigbee is the device block of most tests. Its mode gives access to tasks of nobody.
const zigbee = `
device "zigbee" {
  id   = "10c4:ea60"
  mode = "0666"
}
`

func (o usbOptions) config(dir string) string {
	o.more += "rescan = \"200ms\"\n" // the kernel sends no events for simulated devices
	return fmt.Sprintf("root = %q\nshadow_dir = %q\ngrace = %q\n%s", cmp.Or(o.root, simulation(dir)),
		filepath.Join(dir, "usb-nodes"), cmp.Or(o.grace, "2s"), o.more)
}

// simulation returns the directory of a node's simulated machine.
func simulation(dir string) string { return filepath.Join(dir, "usb") }

// stick is a simulated stick that is plugged in.
type stick struct {
	cmd *exec.Cmd

	mu  sync.Mutex // guards out
	out bytes.Buffer
}

// Write collects the output of the simulator, which prints the bytes that tasks write to the stick.
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
	testsupport.Eventually(t, "the simulator prints", func() bool { return s.heard() != "" })
	return s
}

// unplug unplugs the stick, and may be called twice.
func (s *stick) unplug(t testing.TB) {
	t.Helper()
	if s.cmd.ProcessState != nil {
		return
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the simulator of the stick failed: %v\n%s", err, s.heard())
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

// talk sends a word to a stick and prints the answer. It needs a subshell: a session leader would get the port as its
// controlling terminal. timeout runs head in the background, where a read from the controlling terminal would stop it.
const talk = `(stty raw -echo <$T && exec 3<>$T && echo %s >&3 && timeout 10 head -n 1 <&3)`

// say returns a task that talks to the serial port named by an environment variable.
func say(variable, word string) conf {
	return sh("T=$" + variable + "; " + fmt.Sprintf(talk, word))
}

// anybody returns an unprivileged user for tasks, or "" if the agent can't run tasks as other users.
func anybody() string {
	if os.Geteuid() == 0 {
		return "nobody"
	}
	return ""
}

func TestUSB_JobsGetDevicesTheyAskFor(t *testing.T) {
	t.Parallel()
	root := filepath.Join(mkdir(t), "usb")
	twins := []*stick{ // without serial numbers: identified by their ports
		plug(t, root, "-id", "10c4:ea60", "-serial", "", "-port", "1-1"),
		plug(t, root, "-id", "10c4:ea60", "-serial", "", "-port", "2-1"),
	}
	plug(t, root, "-id", "0403:6001", "-serial", "GPS1", "-port", "1-2")
	n := newNode(t, nodeOptions{usb: &usbOptions{root: root, more: zigbee + `
device "gps" {
  id    = "0403:6001"
  mode  = "0666"
  count = 2
}
`}})
	all := n.devices(t)
	must.SliceLen(t, 4, all, must.Sprint("the node's devices"))
	must.Eq(t, "0403:6001:GPS1#1", all[0], must.Sprint("the node's devices"))
	must.Eq(t, "0403:6001:GPS1#2", all[1], must.Sprint("the node's devices"))
	must.StrHasPrefix(t, "10c4:ea60@", all[2], must.Sprint("the node's devices"))
	must.StrHasPrefix(t, "10c4:ea60@", all[3], must.Sprint("the node's devices"))
	first, second := all[2], all[3]

	t.Run("raw_exec", func(t *testing.T) {
		a := n.submit(t, job(t, say("USB_GPS_HOST_TTY", "raw"), withDevice("gps"), asDriver("raw_exec")))
		test.Eq(t, "exit 0", a.ended(t), test.Sprint(a.story()))
		a.says(t, "stdout", "stick: raw\n") // logmon can write the last bytes after the task's end
	})
	t.Run("two tasks share a device", func(t *testing.T) {
		a := n.start(t, sh("exec sleep 600"), withDevice("gps"))
		b := n.start(t, sh("exec sleep 600"), withDevice("gps"))
		a.stop(t)
		b.stop(t)
	})
	t.Run("two devices in one task", func(t *testing.T) {
		a := n.submit(t, job(t, sh("echo $USB_ZIGBEE_ID $USB_ZIGBEE_2_ID; for T in $USB_ZIGBEE_TTY $USB_ZIGBEE_2_TTY; do "+
			fmt.Sprintf(talk, "both")+"; done"), asUser(anybody()),
			withDevice("zigbee", func(d *api.RequestedDevice) { d.Count = new(uint64(2)) })))
		a.ends(t, "exit 0", first+" "+second+"\nstick: both\nstick: both\n")
		for _, s := range twins {
			test.StrContains(t, s.heard(), "both\n", test.Sprint("a stick has received"))
		}
	})
}

// mkdir makes a directory that every user can enter, with a short path for sockets.
func mkdir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "d")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// talker returns a task that prints "line N -> ANSWER" with its stick's answer, or "line N -> none", until stopped.
func talker(edit ...func(*api.Job, *api.Task)) (conf, []func(*api.Job, *api.Task)) {
	script := `n=0; T=$USB_ZIGBEE_TTY; while sleep 0.1; do n=$((n+1))
answer=$( ` + fmt.Sprintf(talk, `"$n"`) + ` 2>/dev/null) || answer=none
echo "line $n -> $answer"; done`
	return sh(script), append(edit, withDevice("zigbee"), asUser(anybody()), asService)
}

// saysNow waits for text in the output that a task prints from now on.
func (a *alloc) saysNow(t testing.TB, text string) {
	t.Helper()
	a.saysAfter(t, len(a.output(t, "stdout")), text)
}

func (a *alloc) saysAfter(t testing.TB, before int, text string) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		out, err := a.read("stdout") // can fail just after the agent's start
		if err == nil && !strings.Contains(out[min(before, len(out)):], text) {
			err = fmt.Errorf("no %q in %q", text, last(out[min(before, len(out)):], 300))
		}
		return err
	})
}

// restartSays restarts the task, and waits for text in its new output.
func (a *alloc) restartSays(t testing.TB, text string) {
	t.Helper()
	a.held(t)
	before := len(a.output(t, "stdout")) // not after the request: the new output may have begun
	must.NoError(t, a.n.Client().Allocations().Restart(a.stub(t), "main", nil))
	a.saysAfter(t, before, text)
}

// The faults happen to one task, one after the other. Only the test restarts the task.
func TestUSBFaults_TaskKeepsDevice(t *testing.T) {
	testsupport.Long(t, "a table of faults on real agents")
	t.Parallel()
	root := filepath.Join(mkdir(t), "usb")
	const id = "10c4:ea60:0001"
	args := []string{"-id", "10c4:ea60", "-serial", "0001"}
	s := plug(t, root, args...)
	n := newNode(t, nodeOptions{usb: &usbOptions{root: root, grace: "5m", more: zigbee}})
	n.offers(t, id)
	c, edits := talker()
	a := n.start(t, c, edits...)
	a.saysNow(t, "-> stick: ")
	task := a.pid(t)

	s.unplug(t)
	a.saysNow(t, "-> none")
	n.offers(t, id+": unplugged")
	i := a.stub(t)
	test.Eq(t, "running", i.ClientStatus, test.Sprint("unplugged: the allocation's status"))

	must.NoError(t, a.tells("Device: unplugged: /dev/zigbee/usb, /dev/zigbee/tty"))
	s = plug(t, root, args...)
	a.saysNow(t, "-> stick: ")
	must.NoError(t, a.tells("Device: plugged in again"))
	test.True(t, task.alive(), test.Sprint("re-plugged: the task was restarted"))

	a.restartSays(t, "line 1 -> stick: ") // Nomad does not reserve the device again

	// after a restart, the agent has forgotten the reservation (hashicorp/nomad#9473)
	stop(t, n)
	n.restart(t)
	a.saysNow(t, "-> stick: ")
	a.restartSays(t, "line 1 -> stick: ")

	kill(t, n)
	s.unplug(t)
	plug(t, root, args...)
	n.restart(t)
	a.restartSays(t, "line 1 -> stick: ")
	test.False(t, a.stub(t).TaskStates["main"].Failed, test.Sprint(a.story()))
	a.stop(t)
}
