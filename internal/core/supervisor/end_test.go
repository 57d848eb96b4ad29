package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

func TestSupervisor_IsOneForManyClients(t *testing.T) {
	h := newHost(t, withCgroup)
	var all, told sync.WaitGroup
	pids := make([]int, 20)
	told.Add(len(pids))
	for i := range pids {
		c := h.client()
		st := h.shell("exit " + fmt.Sprint(i))
		all.Go(func() {
			defer h.destroy(c, st.ID)
			defer told.Wait() // a client with a task stays, and the supervisor with it
			defer told.Done()
			if _, err := c.Launch(ctx(t), st); err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			if e := h.wait(c, st.ID); e.Code != i {
				t.Errorf("client %d: exit %+v", i, e)
			}
			pids[i] = c.SupervisorPID(ctx(t))
		})
	}
	all.Wait()
	for i, pid := range pids {
		if pid != pids[0] || pid == 0 {
			t.Errorf("client %d talks to supervisor %d, the first to %d", i, pid, pids[0])
		}
	}
}

func TestSupervisor_IsReplacedQuietlyWhenIdle(t *testing.T) {
	h := newHost(t, withCgroup)
	h.idle = 5 * time.Millisecond // one is always just ending
	c := h.client()
	seen := map[int]bool{}
	end := time.Now().Add(time.Minute)
	for i := 0; i < 60 || len(seen) < 3 && time.Now().Before(end); i++ {
		st := h.shell("exit 3")
		h.launch(c, st)
		if e := h.wait(c, st.ID); e.Code != 3 {
			t.Errorf("exit is %+v", e)
		}
		seen[c.SupervisorPID(ctx(t))] = true
		h.destroy(c, st.ID)
		time.Sleep(time.Duration(i%12) * 2 * time.Millisecond)
	}
	if len(seen) < 3 {
		t.Errorf("only %d supervisors: the test proves nothing", len(seen))
	}
}

func TestSupervisor_ServesItsOwnStoreOnly(t *testing.T) {
	a, b := newHost(t, withCgroup), newHost(t, withCgroup)
	ca, cb := a.client(), b.client()
	sa, sb := a.launch(ca, a.shell("exec sleep 1000")), b.launch(cb, b.shell("exec sleep 1000"))
	if a.supervisor() == b.supervisor() {
		t.Fatal("one supervisor serves both")
	}
	b.destroy(cb, sa.ID+"x")
	if err := cb.Signal(ctx(t), "no such task", unix.SIGTERM, ""); err == nil {
		t.Error("a task of nobody was signalled")
	}
	a.kill(a.supervisor(), unix.SIGKILL)
	if e := cb.Exit(sb.ID); e != nil {
		t.Errorf("the other's task ended: %+v", e)
	}
	a.destroy(ca, sa.ID)
	if !sb.Identity.Alive() {
		t.Error("the other's task is gone")
	}
	b.destroy(cb, sb.ID)
}

func TestExit_RecordOutlivesTheSupervisor(t *testing.T) {
	h := newHost(t, withCgroup)
	first := h.plugin()
	st := first.launch(h.shell("exit 42"))
	if a := first.do(pluginOrder{Wait: st.ID}); a.Exit == nil || a.Exit.Code != 42 {
		t.Fatalf("told %+v", a)
	}
	first.kill()
	eventually(t, "the idle supervisor ends", func() bool { return len(h.supervisors()) == 0 })
	reapOrphans()
	c := h.client()
	stat, err := c.Adopt(ctx(t), st)
	must(t, err)
	if stat.Exit == nil || stat.Exit.Code != 42 {
		t.Errorf("status is %+v", stat)
	}
	if e := h.wait(c, st.ID); e.Code != 42 {
		t.Errorf("exit is %+v", e)
	}
	h.destroy(c, st.ID)
}

func TestSupervisor_IgnoresTerminationSignals(t *testing.T) {
	h := newHost(t, withoutCgroup)
	c := h.client()
	st := h.launch(c, h.shell("exec sleep 1000"))
	pid := h.supervisor()
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE} {
		must(t, unix.Kill(pid, sig))
	}
	// it answers, which it would not with any of them
	if c.SupervisorPID(ctx(t)) != pid || h.supervisor() != pid || c.Exit(st.ID) != nil {
		t.Error("it or its task ended")
	}
	h.destroy(c, st.ID)
}

// 2,000 short tasks, 8 at a time.
func TestSupervisor_LeavesNothingOfThousandsOfTasks(t *testing.T) {
	total := 2000
	if testing.Short() {
		total = 200
	}
	for name, cgroups := range map[string]bool{"in a cgroup": withCgroup, "without cgroup": withoutCgroup} {
		t.Run(name, func(t *testing.T) {
			n := total
			if !cgroups {
				n = total / 10 // each end of one looks at all processes
			}
			h := newHost(t, cgroups)
			c := h.client()
			// everything is warm, and the supervisor stays
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
					if err := c.Destroy(ctx(t), one.ID); err != nil {
						t.Errorf("destroy %d: %v", i, err)
					}
				}
				lines := strings.Count(h.output(st, "stdout"), "\n")
				if want := (to - from) - (to-from)/5; lines != want {
					t.Errorf("worker %d: %d lines of output, want %d", worker, lines, want)
				}
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
			eventually(t, "the supervisor has no more descriptors than before", func() bool {
				return count(t, pid, "fd") <= fds
			})
			eventually(t, "the collector has no more descriptors than before", func() bool {
				return count(t, collector, "fd") <= held
			})
			// the runtime's own, for calls that block; a leak would be one a task
			if now := count(t, pid, "task"); now > threads+20 {
				t.Errorf("%d threads before, %d after", threads, now)
			}
			// itself, the one that runs, and its five files
			if dirs := tree(filepath.Join(h.store.Dir, "tasks")); len(dirs) != 7 {
				t.Errorf("files: %v", dirs)
			}
			h.destroy(c, keep.ID)
		})
	}
}

func count(t *testing.T, pid int, what string) int {
	e, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, what))
	must(t, err)
	return len(e)
}

// The answer to a Kill may not come before the exit that it waits for.
func TestExit_IsReportedBeforeWaitersReturn(t *testing.T) {
	s := &server{clients: map[*client]bool{}, processes: map[string]*process{}}
	for range 10_000 {
		s.clients[&client{out: make(chan *reply, 1)}] = true
	}
	p := newProcess("task")
	told := make(chan int)
	go func() {
		<-p.done
		n := 0
		for c := range s.clients {
			n += len(c.out)
		}
		told <- n
	}()
	s.publish(p, &task.Exit{})
	if n := <-told; n != len(s.clients) {
		t.Errorf("%d of %d clients had been told", n, len(s.clients))
	}
}

// What is left behind may get no processor for a while, to die on.
func TestOrphans_AreWaitedFor(t *testing.T) {
	h := newHost(t, withoutCgroup)
	frozen := fmt.Sprintf("/sys/fs/cgroup/freezer/outrider-test-sup-%d", os.Getpid())
	if err := os.Mkdir(frozen, 0o755); err != nil {
		t.Skipf("no cgroup v1 freezer: %v", err)
	}
	freeze := func(state string) { must(t, os.WriteFile(frozen+"/freezer.state", []byte(state), 0)) }
	t.Cleanup(func() {
		freeze("THAWED")
		eventually(t, "the freezer is empty", func() bool { return os.Remove(frozen) == nil })
	})
	c := h.client()
	m, file := mark(), filepath.Join(h.dir, "go")
	st := h.launch(c, h.shell("setsid -f sleep "+m+"; "+waits(file, "exit 4")))
	eventually(t, "what it leaves runs", func() bool { return len(sleepers(m)) == 1 })
	must(t, os.WriteFile(frozen+"/cgroup.procs", []byte(strconv.Itoa(sleepers(m)[0])), 0))
	freeze("FROZEN")
	must(t, os.WriteFile(file, nil, 0o600))
	time.Sleep(3 * time.Second)
	freeze("THAWED")
	if e := h.wait(c, st.ID); e.Code != 4 {
		t.Errorf("exit %+v", e)
	}
	if left := sleepers(m); len(left) > 0 {
		t.Errorf("left behind %v", left)
	}
	h.destroy(c, st.ID)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.events) > 0 {
		t.Errorf("events %+v", h.events)
	}
}
