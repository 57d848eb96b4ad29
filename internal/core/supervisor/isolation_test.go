// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestIsolation_PIDNamespaceOutlivesTheSupervisor(t *testing.T) {
	testsupport.NeedRoot(t)
	h := newHost(t, true)
	st := h.orphaned(h.shell("trap 'exit 5' TERM; echo first; while :; do sleep 0.02; done", func(st *task.State) {
		st.Command.Isolation.PID = true
	}))
	c := h.client()
	_, err := c.Adopt(ctx(t), st)
	must.NoError(t, err)

	ended, out := h.session(c, st.ID, "cat /proc/1/comm; kill -TERM 1; [ -e /proc/self/stat ] && echo in it")
	e := <-ended
	b, _ := io.ReadAll(out)
	out.Close()
	test.Eq(t, "outrider-init\nin it\n", string(b))
	test.Eq(t, 0, e.Code)

	must.NoError(t, c.Signal(ctx(t), st.ID, unix.SIGTERM, task.KillProcess))
	if SupportsPidfdExit() {
		h.ends(c, st.ID, task.Exit{Code: 5})
	} else {
		test.True(t, h.wait(c, st.ID).Lost)
	}
	h.destroy(c, st.ID)
}

func TestIsolation_TaskEndsWithTheInitOfItsPIDNamespace(t *testing.T) {
	testsupport.NeedRoot(t)
	h := newHost(t, true)
	c := h.client()
	m := testsupport.Mark()
	st := h.launch(c, h.shell("setsid sleep "+m+" & exec sleep "+m, func(st *task.State) {
		st.Command.Isolation.PID = true
	}))
	testsupport.WaitSleepers(t, m, 2)
	all, err := task.Processes()
	must.NoError(t, err)
	found := 0
	for pid, p := range all {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if p.Parent == all[st.Identity.PID].Parent && string(name) == "outrider-init\n" {
			found++
			must.NoError(t, unix.Kill(pid, unix.SIGKILL))
		}
	}
	must.Eq(t, 1, found)
	h.ends(c, st.ID, task.Exit{Signal: int(unix.SIGKILL)})
	testsupport.WaitSleepers(t, m, 0)
	h.destroy(c, st.ID)
}
