// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// talker says "line N -> answer" of its stick for ever, or "line N -> none".
func talker(edit ...func(*api.Job, *api.Task)) (conf, []func(*api.Job, *api.Task)) {
	script := `n=0; T=$USB_ZIGBEE_TTY; while sleep 0.1; do n=$((n+1))
answer=$( ` + fmt.Sprintf(talk, `"$n"`) + ` 2>/dev/null) || answer=none
echo "line $n -> $answer"; done`
	return sh(script), append(edit, withDevice("zigbee"), asUser(anybody()), asService)
}

// saysNow waits for a text in what a task prints from now on.
func (a *alloc) saysNow(t testing.TB, text string) {
	t.Helper()
	a.saysAfter(t, len(a.output(t, "stdout")), text)
}

func (a *alloc) saysAfter(t testing.TB, before int, text string) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		out, err := a.read("stdout") // an agent that was just started may fail
		if err == nil && !strings.Contains(out[min(before, len(out)):], text) {
			err = fmt.Errorf("no %q in %q", text, last(out[min(before, len(out)):], 300))
		}
		return err
	})
}

// restartSays restarts the task and waits for a text in what it prints then.
func (a *alloc) restartSays(t testing.TB, text string) {
	t.Helper()
	before := len(a.output(t, "stdout")) // it may be up before the request has its answer
	a.restart(t)
	a.saysAfter(t, before, text)
}

func (a *alloc) restart(t testing.TB) {
	t.Helper()
	a.held(t)
	must.NoError(t, a.n.Client().Allocations().Restart(a.stub(t), "main", nil))
}

// The faults come one after the other to one task, which is never started anew but
// where that is the fault.
func TestUSBFaults_TaskKeepsDevice(t *testing.T) {
	testsupport.Long(t, "a table of faults on real agents")
	t.Parallel()
	root := filepath.Join(mkdir(t), "usb")
	const id = "10c4:ea60:0001"
	args := []string{"-id", "10c4:ea60", "-serial", "0001"}
	s := plug(t, root, args...)
	n := usbNode(t, usbOptions{root: root, grace: "5m", more: zigbee})
	n.offers(t, id)
	c, edits := talker()
	a := n.start(t, c, edits...)
	a.saysNow(t, "-> stick: ")
	task := a.pid(t)

	s.unplug(t)
	a.saysNow(t, "-> none")
	n.offers(t, id+": unplugged")
	i := a.stub(t)
	test.Eq(t, "running", i.ClientStatus, test.Sprint("unplugged: the allocation"))
	second := job(t, sh("true"), withDevice("zigbee"))
	test.Eq(t, "missing devices", n.unplaced(t, second), test.Sprint("a second job while it is unplugged"))
	_, _, err := n.Client().Jobs().Deregister(*second.ID, true, nil)
	must.NoError(t, err)

	must.NoError(t, a.tells("Device: unplugged: /dev/zigbee/usb, /dev/zigbee/tty"))
	s = plug(t, root, args...)
	a.saysNow(t, "-> stick: ")
	must.NoError(t, a.tells("Device: plugged in again"))
	test.True(t, task.alive(), test.Sprint("re-plugged: the task was started again"))

	old := n.usbPlugin(t)
	old.end(t)
	testsupport.Within(t, time.Minute, func() error {
		if p := n.find(n.isUSBPlugin); len(p) != 1 || p[0].pid == old.pid {
			return fmt.Errorf("no new plugin: %v", p)
		}
		return nil
	})
	a.saysNow(t, "-> stick: ")
	test.True(t, task.alive(), test.Sprint("the plugin was killed: the task was started again"))
	n.awaitSeen(t, id, true)

	a.restartSays(t, "line 1 -> stick: ") // without a new reservation

	// Nomad forgets what was reserved (hashicorp/nomad#9473)
	stop(t, n)
	n.restart(t)
	a.saysNow(t, "-> stick: ")
	a.restartSays(t, "line 1 -> stick: ")

	kill(t, n)
	s.unplug(t)
	plug(t, root, args...)
	n.restart(t)
	a.restartSays(t, "line 1 -> stick: ")
	if i := a.stub(t); i.TaskStates["main"].Failed {
		t.Errorf("the task failed: %s", a.story())
	}
	a.stop(t)
}

// The task ends well at the signal, and has failed nevertheless: its group may be placed where the device is.
func TestUSB_UnplugStopsATaskThatAsksForIt(t *testing.T) {
	t.Parallel()
	root := filepath.Join(mkdir(t), "usb")
	s := plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
	n := usbNode(t, usbOptions{root: root, more: zigbee})
	n.offers(t, "10c4:ea60:0001")
	c := sh("trap 'exit 0' INT; echo ready; while :; do sleep 0.1; done").with(conf{
		"on_unplug": "stop", "unplug_delay": "1s"})
	a := n.start(t, c, withDevice("zigbee"), asUser(anybody()))
	a.says(t, "stdout", "ready")
	s.unplug(t)
	must.NoError(t, a.tells("Device: unplugged: /dev/zigbee/usb, /dev/zigbee/tty"))
	test.Eq(t, "exit 0", a.ended(t))
	must.NoError(t, a.tells("stopped since its device was unplugged for 1s: /dev/zigbee/usb, /dev/zigbee/tty"))
	test.Eq(t, "failed", a.stub(t).ClientStatus)
	t.Log(a.story())
}

func TestUSB_MissingDeviceIsExplained(t *testing.T) {
	t.Parallel()
	root := filepath.Join(mkdir(t), "usb")
	s := plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
	const id = "10c4:ea60:0001"
	n := usbNode(t, usbOptions{root: root, grace: "10s", more: zigbee})

	// the server has not heard yet that it is gone, and places the job
	var a *alloc
	for tries := 1; ; tries++ {
		n.offers(t, id)
		n.awaitSeen(t, id, true)
		s.unplug(t)
		n.awaitSeen(t, id, false)
		j := job(t, sh("true"), withDevice("zigbee"))
		if a = n.placedAtOnce(t, j); a != nil {
			break
		}
		must.NotEq(t, 15, tries,
			must.Sprint("the server has always heard of it before it has the job: the test proves nothing"))
		_, _, err := n.Client().Jobs().Deregister(*j.ID, true, nil)
		must.NoError(t, err)
		s = plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
	}
	a.ended(t)
	test.NoError(t, a.tells(`device "10c4:ea60:0001" is not `))
	test.StrNotContains(t, a.story(), "\n", test.Sprint("more than a sentence"))

	// now it has: a job waits, and runs when the stick comes
	n.offers(t)
	waiting := job(t, sh("true"), withDevice("zigbee"))
	test.Eq(t, "missing devices", n.unplaced(t, waiting), test.Sprint("why it waits"))
	plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
	b := &alloc{n: n, job: *waiting.ID, id: n.placed(t, *waiting.ID)}
	if got := b.ended(t); got != "exit 0" {
		t.Errorf("got %s: %s", got, b.story())
	}
}

func TestUSB_PluginIsUnchangedAfterManyPlugs(t *testing.T) {
	t.Parallel()
	const id = "10c4:ea60:0001"
	root := filepath.Join(mkdir(t), "usb")
	n := usbNode(t, usbOptions{root: root, grace: "5m", more: zigbee})
	plugin := n.usbPlugin(t)
	var in, out []time.Duration
	cycle := func() {
		t.Helper()
		s := plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
		start := time.Now()
		n.awaitSeen(t, id, true)
		in = append(in, time.Since(start))
		start = time.Now()
		s.unplug(t)
		n.awaitSeen(t, id, false)
		out = append(out, time.Since(start))
	}
	cycle()
	in, out = nil, nil
	fds, tasks := descriptors(plugin.pid), threads(plugin.pid)
	for range 20 {
		cycle()
	}
	testsupport.Within(t, time.Minute, func() error {
		if f, th := descriptors(plugin.pid), threads(plugin.pid); f > fds || th > tasks+10 {
			// of 20 cycles; Go has more where a busy machine lets calls wait
			return fmt.Errorf("%d descriptors and %d threads, before %d and %d", f, th, fds, tasks)
		}
		return nil
	})
	test.True(t, plugin.alive(), test.Sprint("the plugin is another"))
	usbReport.spread("plugged in, until the agent has it, by a look each 200 ms", in)
	usbReport.spread("pulled out, until the agent has it, by a look each 200 ms", out)
}

// Everything of libusb, too: its library is in the plugin, and sees the simulated
// machine because the agent's environment says so.
func TestUSB_LibusbServesAgent(t *testing.T) {
	if libusb != nil {
		t.Skip(libusb)
	}
	preload := "libumockdev-preload.so.0"
	found, _ := filepath.Glob("/usr/lib*/*/" + preload)
	more, _ := filepath.Glob("/usr/lib*/" + preload)
	if len(found)+len(more) == 0 {
		t.Skip("there is no " + preload)
	}
	t.Parallel()
	root := filepath.Join(mkdir(t), "usb")
	s := plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
	n := newNode(t, nodeOptions{
		usb: &usbOptions{root: root, grace: "5m", more: zigbee},
		env: map[string]string{"LD_PRELOAD": preload, "UMOCKDEV_DIR": root},
	})
	n.offers(t, "10c4:ea60:0001")
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", n.usbPlugin(t).pid))
	must.NoError(t, err)
	for _, library := range []string{"libusb-1.0.so", preload} {
		test.StrContains(t, string(maps), library, test.Sprintf("%s is not in the plugin", library))
	}
	a := n.submit(t, job(t, say("USB_ZIGBEE_TTY", "preloaded"), withDevice("zigbee"), asUser(anybody())))
	if got := a.ended(t); got != "exit 0" || a.output(t, "stdout") != "stick: preloaded\n" {
		t.Errorf("got %s, %q: %s", got, a.output(t, "stdout"), a.story())
	}
	for range 3 {
		s.unplug(t)
		n.awaitSeen(t, "10c4:ea60:0001", false)
		s = plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
		n.awaitSeen(t, "10c4:ea60:0001", true)
	}
	test.StrNotContains(t, n.log(), "libusb is not available", test.Sprint("the plugin has given libusb up"))
}
