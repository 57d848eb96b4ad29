// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

func TestSupervisor_IsSharedByManyClients(t *testing.T) {
	h := newHost(t, withCgroup)
	var all, reported sync.WaitGroup
	pids := make([]int, 20)
	reported.Add(len(pids))
	for i := range pids {
		c := h.client()
		st := h.shell("exit " + fmt.Sprint(i))
		all.Go(func() {
			defer h.destroy(c, st.ID)
			defer reported.Wait() // a client with a task stays connected, which keeps the supervisor running
			defer reported.Done()
			if _, err := c.Launch(ctx(t), st); err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			h.ends(c, st.ID, task.Exit{Code: i}, i)
			pids[i] = c.SupervisorPID(ctx(t))
		})
	}
	all.Wait()
	for i, pid := range pids {
		must.Eq(t, pids[0], pid, must.Sprintf("client %d has another supervisor (%d) than the first client", i, pid))
		test.NotEq(t, 0, pid, test.Sprintf("client %d has no supervisor", i))
	}
}

func TestSupervisor_IsReplacedQuietlyWhenIdle(t *testing.T) {
	h := newHost(t, withCgroup)
	h.idle = 5 * time.Millisecond // so short that a task often finds the supervisor about to end
	c := h.client()
	seen := map[int]bool{}
	end := time.Now().Add(time.Minute)
	for i := 0; i < 60 || len(seen) < 3 && time.Now().Before(end); i++ {
		st := h.shell("exit 3")
		h.launch(c, st)
		h.ends(c, st.ID, task.Exit{Code: 3})
		seen[c.SupervisorPID(ctx(t))] = true
		h.destroy(c, st.ID)
		time.Sleep(time.Duration(i%12) * 2 * time.Millisecond)
	}
	test.False(t, len(seen) < 3, test.Sprintf("only %d supervisors: the test proves nothing", len(seen)))
}

// A new supervisor uses the cgroup of the one before, which may remove that cgroup as it ends.
func TestSupervisor_RecreatesItsCgroupIfRemovedDuringTheStart(t *testing.T) {
	h := newHost(t, withCgroup)
	for i := range 20 {
		starting, stop := context.WithCancel(t.Context())
		var remover sync.WaitGroup
		remover.Go(func() {
			for unix.Access(h.leaf.Owned[0], 0) != nil {
				if starting.Err() != nil {
					return
				}
			}
			time.Sleep(time.Duration(i) * 200 * time.Microsecond)
			_ = h.leaf.Remove() // fails once a process is in it
		})
		c := h.client()
		st := h.shell("exit 0")
		h.launch(c, st)
		h.ends(c, st.ID, task.Exit{})
		for _, dir := range h.leaf.Owned {
			b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			must.NoError(t, err)
			must.SliceContains(t, strings.Fields(string(b)), strconv.Itoa(c.SupervisorPID(ctx(t))), must.Sprint(i, dir))
		}
		h.destroy(c, st.ID)
		c.Close()
		stop()
		remover.Wait()
		testsupport.Eventually(t, "the supervisor ends", func() bool { return unix.Access(h.store.Dir, 0) != nil })
	}
}

func TestSupervisor_RemovesItsCgroupWhenALateProcessEnds(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client()
	st := h.shell("exit 0")
	h.launch(c, st)
	h.ends(c, st.ID, task.Exit{})
	h.destroy(c, st.ID)
	late := exec.Command("sleep", "1000") // stands for a collector that is slow to end
	must.NoError(t, late.Start())
	must.NoError(t, h.leaf.Join(late.Process.Pid))
	c.Close()
	testsupport.Eventually(t, "the supervisor ends", func() bool { return unix.Access(h.store.Dir, 0) != nil })
	time.Sleep(time.Second) // a single call of Remove gives up earlier
	must.NoError(t, late.Process.Kill())
	_ = late.Wait() // the error is "signal: killed"
	for _, dir := range h.leaf.Owned {
		testsupport.Eventually(t, dir+" is removed", func() bool { return unix.Access(dir, 0) != nil })
	}
}

func TestSupervisor_ServesItsOwnStoreOnly(t *testing.T) {
	a, b := newHost(t, withCgroup), newHost(t, withCgroup)
	ca, cb := a.client(), b.client()
	sa, sb := a.launch(ca, a.shell("exec sleep 1000")), b.launch(cb, b.shell("exec sleep 1000"))
	must.NotEq(t, b.supervisor(), a.supervisor(), must.Sprint("one supervisor serves both"))
	b.destroy(cb, sa.ID+"x")
	test.Error(t, cb.Signal(ctx(t), "no such task", unix.SIGTERM, ""),
		test.Sprint("an unknown task was signalled"))
	a.kill(a.supervisor(), unix.SIGKILL)
	test.Nil(t, cb.Exit(sb.ID), test.Sprint("the other's task ended"))
	a.destroy(ca, sa.ID)
	test.True(t, sb.Identity.Alive(), test.Sprint("the other's task is gone"))
	b.destroy(cb, sb.ID)
}

func TestExit_RecordOutlivesTheSupervisor(t *testing.T) {
	h := newHost(t, withCgroup)
	first := h.plugin()
	st := first.launch(h.shell("exit 42"))
	if a := first.do(pluginOrder{Wait: st.ID}); a.Exit == nil || a.Exit.Code != 42 {
		t.Fatalf("got %+v", a)
	}
	first.kill()
	testsupport.Eventually(t, "the idle supervisor ends", func() bool { return len(h.supervisors()) == 0 })
	reapOrphans()
	c := h.client()
	stat, err := c.Adopt(ctx(t), st)
	must.NoError(t, err)
	if stat.Exit == nil || stat.Exit.Code != 42 {
		t.Errorf("status is %+v", stat)
	}
	h.ends(c, st.ID, task.Exit{Code: 42})
	h.destroy(c, st.ID)
}

func TestSupervisor_IgnoresTerminationSignals(t *testing.T) {
	h := newHost(t, withoutCgroup)
	c := h.client()
	st := h.launch(c, h.shell("exec sleep 1000"))
	pid := h.supervisor()
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE} {
		must.NoError(t, unix.Kill(pid, sig))
	}
	// the default action of each signal would have ended the supervisor
	must.Eq(t, pid, c.SupervisorPID(ctx(t)), must.Sprint("the supervisor ended"))
	must.Eq(t, pid, h.supervisor(), must.Sprint("the supervisor ended"))
	test.Nil(t, c.Exit(st.ID), test.Sprint("the task ended"))
	h.destroy(c, st.ID)
}

// The test runs 2,000 short tasks, 8 at a time.
func TestSupervisor_CleansUpAfterThousandsOfTasks(t *testing.T) {
	testsupport.Long(t, "thousands of processes")

	const total = 2000
	for name, cgroups := range map[string]bool{"in a cgroup": withCgroup, "without cgroup": withoutCgroup} {
		t.Run(name, func(t *testing.T) {
			n := total
			if !cgroups {
				n = total / 10 // to save time
			}
			h := newHost(t, cgroups)
			c := h.client()
			// a running task keeps the supervisor running
			keep := h.launch(c, h.shell("exec sleep 1000"))
			slot := func(worker, from, to int) {
				st := h.shell("")
				for i := from; i < to; i++ {
					code := i % 256
					one := *st
					one.ID = fmt.Sprintf("%s-%d", st.ID, i)
					one.Command.Args = []string{"-c", fmt.Sprintf("echo %d; exit %d", i, code)}
					if i%5 == 4 {
						one.Command.Args[1] = "kill -TERM $$"
					}
					if _, err := c.Launch(ctx(t), &one); err != nil {
						t.Errorf("launch %d: %v", i, err)
						return
					}
					e := h.wait(c, one.ID)
					if bad := e.Code != code || e.Signal != 0; i%5 == 4 && (e.Signal != int(unix.SIGTERM) || e.Code != 0) ||
						i%5 != 4 && bad {
						t.Errorf("task %d: exit %+v", i, e)
					}
					test.NoError(t, c.Destroy(ctx(t), one.ID), test.Sprintf("destroy %d", i))
				}
				lines := strings.Count(h.output(st, "stdout"), "\n")
				test.Eq(t, (to-from)-(to-from)/5, lines,
					test.Sprintf("worker %d: %d lines of output", worker, lines))
			}
			run := func(n int) {
				var all sync.WaitGroup
				for w := range 8 {
					all.Go(func() { slot(w, 0, n/8) })
				}
				all.Wait()
			}
			run(80)
			pid := h.supervisor()
			fds, threads := count(t, pid, "fd"), count(t, pid, "task")
			collector := h.collector()
			held := count(t, collector, "fd")
			run(n)
			testsupport.Eventually(t, "the supervisor has no more descriptors than before", func() bool {
				return count(t, pid, "fd") <= fds
			})
			testsupport.Eventually(t, "the collector has no more descriptors than before", func() bool {
				return count(t, collector, "fd") <= held
			})
			// the runtime adds some threads for calls that block; a leak would be one thread per task
			now := count(t, pid, "task")
			test.False(t, now > threads+20, test.Sprintf("%d threads before, %d after", threads, now))
			// the tasks directory, the running task's directory in it, and that task's five files
			test.SliceLen(t, 7, tree(filepath.Join(h.store.Dir, "tasks")), test.Sprint("files"))
			h.destroy(c, keep.ID)
		})
	}
}

func count(t *testing.T, pid int, what string) int {
	e, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, what))
	must.NoError(t, err)
	return len(e)
}

// A client that waits in Kill gets the exit of the task before the reply.
func TestExit_IsReportedBeforeWaitersReturn(t *testing.T) {
	s := &server{clients: map[*wire.Peer]bool{}, processes: map[string]*process{}}
	for range 1000 {
		s.clients[wire.NewPeer(nil)] = true
	}
	p := newProcess("task")
	notified := make(chan int)
	go func() {
		<-p.done
		n := 0
		for c := range s.clients {
			n += c.Queued()
		}
		notified <- n
	}()
	s.publish(p, &task.Exit{})
	n := <-notified
	test.Eq(t, len(s.clients), n, test.Sprintf("%d of %d clients had the exit", n, len(s.clients)))
}
