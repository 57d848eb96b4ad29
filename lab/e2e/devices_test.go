// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
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

// triedAgain lets a task that can't be started be tried every moment.
func triedAgain(j *api.Job, _ *api.Task) {
	j.TaskGroups[0].RestartPolicy = &api.RestartPolicy{
		Attempts: new(1000), Mode: new("delay"), Interval: new(time.Hour), Delay: new(200 * time.Millisecond),
	}
}

func TestDevice_IsAwaitedByTask(t *testing.T) {
	t.Parallel()
	root := filepath.Join(mkdir(t), "usb")
	args := []string{"-id", "10c4:ea60", "-serial", "0001"}
	s := plug(t, root, args...)
	n := usbNode(t, usbOptions{root: root, grace: "5m", more: zigbee})
	n.offers(t, "10c4:ea60:0001")
	a := n.start(t, sh("echo started; exec sleep 600"), withDevice("zigbee"), triedAgain)
	s.unplug(t)
	n.awaitSeen(t, "10c4:ea60:0001", false) // its node is there until the plugin has looked
	a.restart(t)
	test.NoError(t, a.tells("is not there: is it plugged?"))
	testsupport.Within(t, time.Minute, func() error {
		if story := a.story(); strings.Count(story, "is it plugged?") < 3 {
			return fmt.Errorf("it is not tried again: %s", story)
		}
		return nil
	})
	plug(t, root, args...)
	a.says(t, "stdout", "started\nstarted\n")
	a.running(t)
	a.stop(t)
}

func TestDevice_IsSeenByCommandsInTaskOnly(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	root := filepath.Join(mkdir(t), "usb")
	plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
	shared := mkdir(t)
	touch(t, filepath.Join(shared, "file"))
	n := usbNode(t, usbOptions{root: root, more: fmt.Sprintf(`
device "zigbee" {
  id = "10c4:ea60"
  mount {
    host_path = %q
    task_path = "/dev/shared"
  }
}`, shared)})
	n.offers(t, "10c4:ea60:0001")

	other := n.start(t, sh("exec sleep 600"))
	a := n.start(t, sh("exec sleep 600"), withDevice("zigbee"))
	code, out, _ := a.session(t, false, nil, nil, "/bin/sh", "-c",
		`readlink "$USB_ZIGBEE_TTY"; ls /dev/shared; touch /dev/shared/new`)
	must.NotEq(t, 0, code, must.Sprintf("it sees %q (exit code %d of a write)", out, code))
	test.Eq(t, filepath.Join(n.dir, "usb-nodes")+"/10c4-ea60-0001/tty\nfile\n", out,
		test.Sprintf("it sees %q (exit code %d of a write)", out, code))
	_, err := os.Lstat("/dev/zigbee")
	test.ErrorIs(t, err, fs.ErrNotExist, test.Sprint("the host has it too"))
	for _, p := range []proc{n.process(t), n.plugin(t), n.supervisor(t)} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.pid))
		must.NoError(t, err, must.Sprintf("%q has the task's mounts, too", p.args))
		test.StrNotContains(t, string(b), " /dev/shared ", test.Sprintf("%q has the task's mounts, too", p.args))
	}

	// Its mounts are a copy of what the host had, those of other allocations too.
	other.stop(t)
	testsupport.Within(t, time.Minute, func() error {
		if _, err := os.Stat(other.dir()); err != nil {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
		return errors.Join(fmt.Errorf("%s is still there", other.dir()), n.Client().System().GarbageCollect())
	})
	a.running(t)
	a.stop(t)
}

func TestDevice_IsAtHostPathWithoutRights(t *testing.T) {
	t.Parallel()
	root := filepath.Join(mkdir(t), "usb")
	plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
	o := nodeOptions{bare: true, shell: unprivileged, usb: &usbOptions{root: root, more: zigbee}}
	if os.Geteuid() != 0 {
		o.shell = ""
	}
	n := newNode(t, o)
	n.offers(t, "10c4:ea60:0001")
	a := n.submit(t, job(t, conf{"command": "/bin/sh",
		"args": []string{"-c", `test -c "$USB_ZIGBEE_TTY" && test -c "$0" && echo "$USB_ZIGBEE_TTY" "$0"`,
			"${USB_ZIGBEE_TTY}"}}, withDevice("zigbee")))
	if got := a.ended(t); got != "exit 0" {
		t.Errorf("got %s: %s", got, a.story())
	}
	path, again, _ := strings.Cut(strings.TrimSpace(a.output(t, "stdout")), " ")
	if !strings.HasPrefix(path, root) && !strings.HasPrefix(path, n.dir) || again != path {
		t.Errorf("it is at %q, and its argument %q", path, again)
	}
	for _, text := range []string{"Devices are at their paths on the host: ", "/dev/zigbee/tty is " + path} {
		test.NoError(t, a.tells(text))
	}
}
