// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// smallStateDisk mounts a file system of 64 pages for the host's store. Call fill to use up all pages except the given
// number, and free to undo that.
func (h *host) smallStateDisk() (fill func(left int) (free func())) {
	t := h.t
	t.Helper()
	testsupport.NeedRoot(t) // to mount
	dir := filepath.Dir(h.store.Dir)
	must.NoError(t, os.MkdirAll(dir, 0o700))
	page := os.Getpagesize()
	must.NoError(t, unix.Mount("outrider-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", 64*page)))
	t.Cleanup(func() {
		for _, c := range h.clients {
			c.Close()
		}
		testsupport.Eventually(t, "the disk is unmounted", func() bool {
			reapOrphans()
			return unix.Unmount(dir, 0) == nil
		})
	})
	return func(left int) func() {
		path := filepath.Join(dir, "filler")
		f, err := os.Create(path)
		must.NoError(t, err)
		defer f.Close()
		size := 0
		for {
			n, err := f.Write(make([]byte, page))
			if size += n; err != nil {
				break
			}
		}
		must.NoError(t, f.Truncate(int64(size-left*page)))
		return func() { must.NoError(t, os.Remove(path)) }
	}
}

// unwatched kills a plugin and the supervisor, so that no process observes the end of their tasks.
func (h *host) unwatched(first *plugin) {
	h.t.Helper()
	pid := h.supervisor()
	first.kill() // first, because the plugin would replace a supervisor that was killed
	h.kill(pid, unix.SIGKILL)
	reapOrphans()
}

func TestExit_IsKeptOnAFullStateDisk(t *testing.T) {
	h := newHost(t, withCgroup)
	fill := h.smallStateDisk()
	first := h.plugin()
	file := filepath.Join(h.dir, "go")
	var tasks []*task.State
	want := []task.Exit{{Code: 7}, {Code: 0}, {Signal: int(unix.SIGSEGV)}}
	for _, then := range []string{"exit 7", "exit 0", "kill -SEGV $$"} {
		st := first.launch(h.shell(waits(file, then)))
		h.waitOutput(st, "first")
		tasks = append(tasks, st)
	}
	free := fill(0)
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, st := range tasks {
		first.do(pluginOrder{Wait: st.ID})
		testsupport.Eventually(t, "the process is reaped", func() bool { return !st.Identity.Alive() })
	}
	h.unwatched(first) // only the disk has the exits after this
	c := h.client()
	for i, st := range tasks {
		stat, err := c.Adopt(ctx(t), st)
		if err != nil || stat.Exit == nil || stat.Exit.Lost || stat.Exit.Code != want[i].Code ||
			stat.Exit.Signal != want[i].Signal {
			t.Errorf("status %+v, exit %+v, %v", stat, stat.Exit, err)
		}
		h.destroy(c, st.ID)
	}
	free()
}

// However little space is left, either a start is refused, or the task has all the space that it will ever need.
func TestLaunch_IsRefusedOnAFullStateDisk(t *testing.T) {
	h := newHost(t, withCgroup)
	fill := h.smallStateDisk()
	warm := h.client()
	keep := h.launch(warm, h.shell("exec sleep 1000"))
	refused, started := 0, 0
	for left := 0; left < 12; left++ {
		file := filepath.Join(h.dir, fmt.Sprint("go", left))
		st := h.shell(waits(file, "exit 7"))
		free := fill(left)
		_, err := warm.Launch(ctx(t), st)
		if err != nil {
			refused++
			if !errors.Is(err, unix.ENOSPC) && !strings.Contains(err.Error(), "no space left on device") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%d pages are left: got %v", left, err)
			}
			if _, err := os.Stat(h.store.TaskDir(st.ID)); err == nil {
				t.Errorf("%d pages are left: files of the refused task remain: %v", left, tree(h.store.TaskDir(st.ID)))
			}
			free()
			continue
		}
		started++
		free()
		free = fill(0) // another process may use the rest of the disk
		must.NoError(t, os.WriteFile(file, nil, 0o600))
		h.ends(warm, st.ID, task.Exit{Code: 7}, left)
		if e := h.store.LoadExit(st.ID); e == nil || e.Code != 7 {
			t.Errorf("%d pages are left: on disk is %+v", left, e)
		}
		h.destroy(warm, st.ID)
		free()
	}
	must.NotEq(t, 0, refused,
		must.Sprintf("%d starts were refused, %d were not: the test proves nothing", refused, started))
	test.NotEq(t, 0, started,
		test.Sprintf("%d starts were refused, %d were not: the test proves nothing", refused, started))
	h.destroy(warm, keep.ID)
}

// spoil puts a directory in place of a task's record, so that not even root can write it. Call heal to put the record
// back.
func (h *host) spoil(id string) (heal func()) {
	h.t.Helper()
	path := h.store.Record(id)
	must.NoError(h.t, os.Rename(path, path+".kept"))
	must.NoError(h.t, os.Mkdir(path, 0o700))
	return func() {
		// an exchange in one step, since the supervisor may write the record at any moment
		must.NoError(h.t, unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, path+".kept", unix.RENAME_EXCHANGE))
		must.NoError(h.t, os.Remove(path+".kept"))
	}
}

func TestExit_IsKeptByTheKernelUntilItIsSaved(t *testing.T) {
	for _, then := range []string{"the exit can be saved later", "the supervisor is killed", "the task is destroyed"} {
		t.Run(then, func(t *testing.T) {
			eachHolding(t, func(t *testing.T, cgroups bool) {
				h := newHost(t, cgroups)
				first := h.client()
				file := filepath.Join(h.dir, "go")
				st := h.launch(first, h.shell(waits(file, "exit 7")))
				h.waitOutput(st, "first")
				pid := h.supervisor()
				heal := h.spoil(st.ID)
				must.NoError(t, os.WriteFile(file, nil, 0o600))
				h.ends(first, st.ID, task.Exit{Code: 7})
				zombie := func() bool { now, err := task.ReadStat(st.Identity.PID); return err == nil && now.Zombie }
				test.True(t, zombie(), test.Sprint("the kernel no longer has its exit"))
				l, err := first.wire.Connect(ctx(t))
				must.NoError(t, err)
				binary, err := binaries[0]()
				must.NoError(t, err)
				defer binary.Close()
				_, err = roundTrip(context.Background(), l, &request{Op: opUpgrade, Build: "x"}, binary)
				if err == nil || errors.Is(err, wire.ErrLost) {
					t.Errorf("upgrade: %v", err)
				}
				other := h.launch(first, h.shell("exit 3")) // its end makes the supervisor search for orphans
				h.wait(first, other.ID)
				h.destroy(first, other.ID)

				want := task.Exit{Code: 7}
				switch then {
				case "the exit can be saved later":
					first.Close()
					for end := time.Now().Add(5 * h.idle); time.Now().Before(end); time.Sleep(h.idle / 10) {
						if pids := h.supervisors(); len(pids) != 1 || pids[0] != pid || !zombie() {
							t.Fatalf("supervisors %v, a zombie: %v", pids, zombie())
						}
					}
					heal()
					testsupport.Eventually(t, "it is reaped", func() bool { return !zombie() })
					if e := h.store.LoadExit(st.ID); e == nil || e.Code != 7 {
						t.Errorf("on disk is %+v", e)
					}
					testsupport.Eventually(t, "the supervisor ends", func() bool { reapOrphans(); return len(h.supervisors()) == 0 })
				case "the supervisor is killed":
					first.Close()
					h.kill(pid, unix.SIGKILL)
					h.waitReaped(st)
					heal()
					want = task.Exit{Lost: true} // no other process held the task's pidfd
				case "the task is destroyed":
					h.destroy(first, st.ID)
					test.False(t, st.Identity.Alive(), test.Sprint("its process still exists"))
					_, err := os.Stat(h.store.TaskDir(st.ID))
					test.Error(t, err, test.Sprint("its directory still exists"))
					return
				}
				second := h.client()
				_, err = second.Adopt(ctx(t), st)
				must.NoError(t, err)
				h.ends(second, st.ID, want)
				h.destroy(second, st.ID)
				reapOrphans()
			})
		})
	}
}
