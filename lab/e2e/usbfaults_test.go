// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// talker prints "line N -> ANSWER" with its stick's answer, or "line N -> none", until it is stopped.
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
	before := len(a.output(t, "stdout")) // the task may run again before the request returns
	must.NoError(t, a.n.Client().Allocations().Restart(a.stub(t), "main", nil))
	a.saysAfter(t, before, text)
}

// The faults happen to one task, one after the other. It is restarted only by the test.
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
