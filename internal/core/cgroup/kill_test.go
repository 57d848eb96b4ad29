// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// daemons is the script of a task whose processes try to escape by starting new sessions and by forking twice.
const daemons = `
	(setsid sh -c 'sleep 300 & exec sleep 301' &)
	setsid sh -c '(sleep 302 &) ; (setsid sleep 303 &)'
	exec sleep 304`

func TestV1Kill_KillsAWholeProcessTree(t *testing.T) {
	cases := []struct {
		name    string
		prepare func(t *testing.T, g *Group)
	}{
		{"as it is", func(*testing.T, *Group) {}},
		{"without cgroup.kill", func(t *testing.T, g *Group) {
			*g = withoutUnified(*g)
		}},
		{"frozen by someone else", func(t *testing.T, g *Group) {
			t.Cleanup(func() { writeFile(g.V1["freezer"]+"/freezer.state", "THAWED") })
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := v1Task(t)
			c.prepare(t, &g)
			must.NoError(t, g.Create(Limits{}))
			cmd := start(t, g, daemons)
			testsupport.Eventually(t, "the five sleep", func() bool { return countSleeps(t, g) == 5 && countProcs(t, g) == 5 })
			pids, _ := g.Procs()
			if strings.HasPrefix(c.name, "frozen") {
				must.NoError(t, writeFile(g.V1["freezer"]+"/freezer.state", "FROZEN"))
			}
			must.NoError(t, g.Kill())
			for _, pid := range pids {
				if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !exits(string(b)) {
					t.Errorf("still alive: %s", b)
				}
			}
			// Remove works although cmd.Wait has not yet reaped the main process
			test.NoError(t, g.Remove())
			cmd.Wait()
		})
	}
}

// exits reports whether a process is exiting or dead. stat is the content of its /proc/PID/stat. An exiting process
// leaves its cgroup before it becomes a zombie.
func exits(stat string) bool {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	flags, _ := strconv.ParseUint(f[9-3], 10, 64) // field 9 in proc_pid_stat(5)
	const exiting = 0x4                           // PF_EXITING in linux/sched.h
	return f[0] == "Z" || f[0] == "X" || flags&exiting != 0
}

func TestV1Kill_EndsAForkBomb(t *testing.T) {
	g := withoutUnified(v1Task(t))
	must.NoError(t, g.Create(Limits{PidsMax: 40}))
	start(t, g, `exec 2>/dev/null; f() { (sleep 0.01; f) & (sleep 0.01; f) & wait; }; while :; do f; done`)
	testsupport.Eventually(t, "the fork bomb runs", func() bool { return countProcs(t, g) > 10 })
	must.NoError(t, g.Kill())
	n := countProcs(t, g)
	test.Eq(t, 0, n, test.Sprintf("%d processes are left", n))
}
