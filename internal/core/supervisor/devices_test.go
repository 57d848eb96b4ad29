// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// A task with devices has its own mount namespace. A supervisor that adopts the task must find the namespace. When the
// task has ended, none of the namespace's mounts may be left.
func TestMounts_StayWhenTheSupervisorIsReplaced(t *testing.T) {
	testsupport.NeedRoot(t) // to mount
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		h.startOld()
		c := h.old()
		must.NoError(t, os.WriteFile(filepath.Join(h.dir, "file"), []byte("mounted\n"), 0o644))
		st := h.launch(c, h.shell("readlink /dev/zigbee/tty; exec sleep 600", func(st *task.State) {
			st.Command.Devices = []task.Device{{HostPath: "/dev/null", TaskPath: "/dev/zigbee/tty"}}
			st.Command.Mounts = []task.Mount{{Source: h.dir, Target: "/dev/bus/usb", ReadOnly: true}}
		}))
		h.waitOutput(st, "/dev/null\n")
		look := func(when string, c *Client) {
			t.Helper()
			ended, out := h.session(c, st.ID, "readlink /dev/zigbee/tty; cat /dev/bus/usb/file")
			defer out.Close()
			b, err := io.ReadAll(out)
			must.NoError(t, err)
			if e := <-ended; e == nil || e.Code != 0 || string(b) != "/dev/null\nmounted\n" {
				t.Errorf("%s: a command in the task prints %q, %+v", when, b, e)
			}
		}
		look("at first", c)
		second := h.client()
		c.Close()
		if stat, err := second.Adopt(ctx(t), st); err != nil || !stat.Running {
			t.Fatalf("after an upgrade: %+v, %v", stat, err)
		}
		look("after an upgrade", second)
		h.kill(h.supervisor(), unix.SIGKILL)
		h.isServed(second)
		look("adopted", second)
		h.destroy(second, st.ID)
		b, err := os.ReadFile("/proc/self/mountinfo")
		must.NoError(t, err)
		must.StrNotContains(t, string(b), h.dir, must.Sprintf("mounts are left:\n%s", b))
		test.StrNotContains(t, string(b), "zigbee", test.Sprintf("mounts are left:\n%s", b))
	})
}
