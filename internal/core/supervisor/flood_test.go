// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// bomb is a role of the test binary, a fork bomb: each process forks whenever its limits allow, and never ends. It
// makes only raw system calls, because the children have no working Go runtime.
func bomb(kind string) {
	pause := unix.NsecToTimespec(int64(time.Millisecond))
	for {
		pid, _, e := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if e == 0 && pid == 0 && kind == bombOfSessions {
			_, _, _ = unix.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
		}
		_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
	}
}

const (
	roleBomb       = "bomb"
	bombOfOneGroup = "of one process group"
	bombOfSessions = "of many sessions"
)

func TestKill_EndsAForkBomb(t *testing.T) {
	testsupport.NeedRoot(t) // to run the bomb as another user
	const most = 100
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		binary := filepath.Join(h.dir, "bomb") // in a directory that the bomb's user can access
		b, err := os.ReadFile("/proc/self/exe")
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(binary, b, 0o755))
		for _, of := range []struct{ name, how string }{
			{bombOfOneGroup, "kill"}, {bombOfOneGroup, "death of the main process"},
			{bombOfSessions, "kill"}, {bombOfSessions, "death of the main process"},
		} {
			if !cgroups && of.name == bombOfSessions {
				continue // without a cgroup, a process that leaves the group can't be found
			}
			name, m := of.name, testsupport.Mark()
			st := h.launch(c, h.shell("", func(st *task.State) {
				st.Command.Path, st.Command.Args = binary, []string{roleBomb, name, m}
				if cgroups {
					st.Limits.PidsMax = most
				} else { // the limit counts all processes of a user, so this user must have no others
					id := uint32(1_000_000 + os.Getpid()%100_000)
					st.Command.User = &task.User{UID: id, GID: id}
					st.Command.Rlimits = []task.Rlimit{{Resource: unix.RLIMIT_NPROC, Soft: most, Hard: most}}
				}
			}))
			bomb := func() int {
				return len(testsupport.Processes(func(args []string) bool { return slices.Contains(args, m) }))
			}
			testsupport.Eventually(t, name+" fills its limit", func() bool { return bomb() > most/2 })
			begin := time.Now()
			if of.how == "kill" {
				must.NoError(t, c.Kill(ctx(t), st.ID))
			} else {
				must.NoError(t, unix.Kill(st.Identity.PID, unix.SIGKILL))
			}
			h.ends(c, st.ID, task.Exit{Signal: int(unix.SIGKILL)}, of)
			t.Logf("%v: gone in %v", of, time.Since(begin))
			if cgroups {
				h.destroy(c, st.ID)
				left := bomb()
				test.False(t, left > 0, test.Sprintf("%v: %d processes are left", of, left))
			}
			testsupport.Eventually(t, name+" is gone", func() bool { return bomb() == 0 })
			h.destroy(c, st.ID)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		test.SliceEmpty(t, h.events, test.Sprint("events"))
	})
}

func TestKill_EndsATreeOfAThousandProcesses(t *testing.T) {
	testsupport.Long(t, "thousands of processes")
	const many = 1000
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep MARK & i=$((i+1)); done; echo ready; ", many)
	eachHolding(t, func(t *testing.T, cgroups bool) {
		for how, then := range map[string]string{"kill": "wait", "exit": "read x < FIFO; exit 4"} {
			h := newHost(t, cgroups)
			c := h.client()
			m, fifo := testsupport.Mark(), filepath.Join(h.dir, "go")
			must.NoError(t, unix.Mkfifo(fifo, 0o600))
			st := h.launch(c, h.shell(strings.NewReplacer("MARK", m, "FIFO", fifo).Replace(script+then)))
			h.waitOutput(st, "ready")
			begin := time.Now()
			must.NoError(t, c.Signal(ctx(t), st.ID, 0, task.KillAll))
			signalled := time.Since(begin)
			begin = time.Now()
			if how == "kill" {
				must.NoError(t, c.Kill(ctx(t), st.ID))
			} else {
				must.NoError(t, os.WriteFile(fifo, []byte("\n"), 0))
				h.ends(c, st.ID, task.Exit{Code: 4})
				h.destroy(c, st.ID)
			}
			t.Logf("%s: signalled in %v, gone in %v", how, signalled, time.Since(begin))
			h.gone(m, how)
			h.destroy(c, st.ID)
			h.mu.Lock()
			test.SliceEmpty(t, h.events, test.Sprintf("%s: events", how))
			h.mu.Unlock()
		}
	})
}

func TestSignal_ToAllProcessesDelaysNoOtherRequest(t *testing.T) {
	dir := t.TempDir()
	procs := filepath.Join(dir, "cgroup.procs") // a FIFO: reading it blocks, like reading a file with thousands of pids
	must.NoError(t, unix.Mkfifo(procs, 0o600))
	s := &server{processes: map[string]*process{}}
	p := newProcess("id")
	p.phase = running
	p.group = cgroup.Group{Mode: cgroup.V1, V1: map[string]string{"pids": dir}}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	must.NoError(t, err)
	defer unix.Close(fd)
	p.pidfd, p.identity.PID = fd, os.Getpid()
	s.processes["id"] = p
	answered := make(chan error, 1)
	go func() { answered <- s.signal("id", 0, task.KillAll) }()
	var w int
	testsupport.Eventually(t, "the group is read", func() bool {
		w, err = unix.Open(procs, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err == nil
	})
	if s.mu.TryLock() {
		s.mu.Unlock()
	} else {
		t.Error("other requests have to wait")
	}
	must.NoError(t, os.WriteFile(procs+".new", nil, 0o600))
	must.NoError(t, os.Rename(procs+".new", procs))
	unix.Close(w)
	must.NoError(t, <-answered)
}

func TestSignal_IsRefusedAfterTheTaskEnds(t *testing.T) {
	s := &server{processes: map[string]*process{}}
	for _, mode := range []task.KillMode{"", task.KillProcess, task.KillGroup, task.KillAll} {
		p := newProcess("id")
		p.phase = running
		s.processes["id"] = p
		err := s.signal("id", 0, mode)
		test.ErrorIs(t, err, ErrEnded, test.Sprintf("%q: recorded", mode))
		// the process is dead, and reaped by another process, but the supervisor has not noticed it yet
		cmd := exec.Command("true")
		must.NoError(t, cmd.Start())
		p.pidfd, err = unix.PidfdOpen(cmd.Process.Pid, 0)
		must.NoError(t, err)
		p.identity, err = task.Identify(cmd.Process.Pid)
		must.NoError(t, err)
		must.NoError(t, cmd.Wait())
		test.ErrorIs(t, s.signal("id", 0, mode), ErrEnded, test.Sprintf("%q: reaped", mode))
		unix.Close(p.pidfd)
	}
}

func TestOrphans_OfAnAdoptedTaskAreKilled(t *testing.T) {
	h := newHost(t, withoutCgroup)
	c := h.client()
	m, file := testsupport.Mark(), filepath.Join(h.dir, "go")
	other := testsupport.Mark()
	bystander := h.launch(c, h.shell("sleep "+other+" & exec sleep 1000"))
	st := h.launch(c, h.shell("sleep "+m+" & (sleep "+m+" &); "+waits(file, "exit 4")))
	testsupport.WaitSleepers(t, m, 2)
	testsupport.WaitSleepers(t, other, 1)
	h.kill(h.supervisor(), unix.SIGKILL)
	_, err := c.Adopt(ctx(t), st)
	must.NoError(t, err)
	_, err = c.Adopt(ctx(t), bystander)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	if e := h.wait(c, st.ID); e.Code != 4 && !e.Lost {
		t.Errorf("exit %+v", e)
	}
	h.gone(m, "ended")
	test.SliceLen(t, 1, testsupport.Sleepers(other), test.Sprint("another task's process was killed"))
	h.destroy(c, st.ID)
	h.destroy(c, bystander.ID)
}

// Zombies would count toward the process limits of the task and of the machine.
func TestOrphans_AreReaped(t *testing.T) {
	eachHolding(t, func(t *testing.T, cgroups bool) {
		h := newHost(t, cgroups)
		c := h.client()
		m := testsupport.Mark()
		st := h.launch(c, h.shell("for i in 1 2 3; do (setsid sleep "+m+" & ); done; exec sleep 1000"))
		testsupport.WaitSleepers(t, m, 3)
		orphans := testsupport.Sleepers(m)
		testsupport.Eventually(t, "they are the supervisor's children", func() bool {
			return !slices.ContainsFunc(orphans, func(pid int) bool {
				found, err := task.ReadStat(pid)
				return err != nil || found.Parent != h.supervisor()
			})
		})
		for _, pid := range orphans {
			must.NoError(t, unix.Kill(pid, unix.SIGKILL))
		}
		testsupport.Eventually(t, "they are reaped", func() bool {
			return !slices.ContainsFunc(orphans, func(pid int) bool {
				_, err := task.ReadStat(pid)
				return err == nil
			})
		})
		must.NoError(t, unix.Kill(st.Identity.PID, unix.SIGKILL))
		h.ends(c, st.ID, task.Exit{Signal: int(unix.SIGKILL)})
		h.destroy(c, st.ID)
	})
}

func TestSession_FloodDelaysNoOtherTask(t *testing.T) {
	const flood = 1000
	h := newHost(t, withoutCgroup)
	c := h.client()
	m := testsupport.Mark()
	victim := h.launch(c, h.shell("exec sleep 1000"))
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must.NoError(t, err)
	defer null.Close()
	session := func(i int) error {
		_, err := c.Exec(ctx(t), victim.ID, &ExecSpec{Session: fmt.Sprintf("%s-%d", m, i), Path: "sleep",
			Args: []string{m}}, [3]*os.File{null, null, null})
		return err
	}
	refused := make(chan error, flood)
	var all sync.WaitGroup
	for i := range flood {
		all.Go(func() {
			if err := session(i); err != nil {
				refused <- err
			}
		})
	}
	for range 5 {
		st := h.launch(c, h.shell("exit 4"))
		h.ends(c, st.ID, task.Exit{Code: 4}, "another task")
		h.destroy(c, st.ID)
	}
	all.Wait()
	close(refused)
	for err := range refused {
		must.StrContains(t, err.Error(), "the task already has 128 exec sessions, the maximum: end one first",
			must.Sprint(err))
	}
	n := len(testsupport.Sleepers(m))
	test.Eq(t, maxSessions, n, test.Sprintf("%d sessions run", n))
	for i, pid := range testsupport.Sleepers(m) { // each session that ends makes room for another
		must.NoError(t, unix.Kill(pid, unix.SIGKILL))
		testsupport.Eventually(t, "another session starts", func() bool { return session(flood+i) == nil })
		if i == 3 {
			break
		}
	}
	_, err = c.Exec(ctx(t), victim.ID, &ExecSpec{Session: m, Path: "/no/such"}, [3]*os.File{null, null,
		null})
	test.Error(t, err, test.Sprint("a session without a program was started"))
	h.destroy(c, victim.ID)
	// without a cgroup, Destroy kills the sessions but does not wait for them
	testsupport.Eventually(t, "no session is left", func() bool { return len(testsupport.Sleepers(m)) == 0 })
	next := h.launch(c, h.shell("exec sleep 1000"))
	for i := range maxSessions + 5 { // a session that fails to start does not count toward the maximum
		_, err := c.Exec(ctx(t), next.ID, &ExecSpec{Session: fmt.Sprintf("%s-no-%d", m, i), Path: "/no/such"},
			[3]*os.File{null, null, null})
		must.ErrorContains(t, err, "/no/such")
	}
	h.destroy(c, next.ID)
}
