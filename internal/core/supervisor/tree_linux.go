package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Where no cgroup can hold a task together, its main process does: it is made a
// subreaper (PR_SET_CHILD_SUBREAPER survives exec, prctl(2)), so that whatever
// forks away stays below it for as long as it lives. When it ends, what is left
// of the tree becomes the supervisor's own children, and is killed.

// signalTree sends a signal to a process and everything below it.
func signalTree(root task.Identity, sig unix.Signal) error {
	all := task.Tree(root)
	if len(all) == 0 {
		return unix.ESRCH
	}
	for _, st := range all {
		signalOne(st, sig)
	}
	return nil
}

// signalOne signals the very process that was seen, never one that got its pid since.
func signalOne(seen task.Stat, sig unix.Signal) {
	fd, err := unix.PidfdOpen(seen.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, err := task.ReadStat(seen.PID); err == nil && now.Start == seen.Start {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// killTree ends a process and everything below it: stopped first, so that
// nothing forks away while the tree is walked.
func killTree(id task.Identity, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		table, err := task.Processes()
		if err != nil {
			return err
		}
		root, here := table[id.PID]
		if !here || root.Start != id.Start || id.BootID != task.BootID() {
			return nil // what was below it is the supervisor's now: killOrphans
		}
		signalOne(root, unix.SIGSTOP)
		below := task.Descendants(table, id.PID)
		alive := 0
		for _, st := range below {
			if !st.Zombie {
				alive++
				signalOne(st, unix.SIGKILL)
			}
		}
		if alive == 0 {
			signalOne(root, unix.SIGKILL)
			if root.Zombie {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of the task do not end", alive+1)
		}
	}
}

// killMarked kills the processes that a task left to init: one that was adopted,
// so that this process is no ancestor of it. They are known by the environment that
// Nomad gave the task, run being <alloc>/<task>; a process that cleared its
// environment is not found.
func killMarked(run string) error {
	alloc, name, _ := strings.Cut(run, "/")
	marks := [][]byte{[]byte("\x00NOMAD_ALLOC_ID=" + alloc + "\x00"), []byte("\x00NOMAD_TASK_NAME=" + name + "\x00")}
	return untilNone(func() (left int, err error) {
		table, err := task.Processes()
		for _, st := range table {
			env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", st.PID))
			if err != nil || st.Zombie || st.PID == os.Getpid() {
				continue
			}
			env = append([]byte{0}, env...)
			if bytes.Contains(env, marks[0]) && bytes.Contains(env, marks[1]) {
				left++
				signalOne(st, unix.SIGKILL)
			}
		}
		return left, err
	})
}

// orphanTime bounds how long what a task left behind may take to be gone, within
// which its exit waits. It is microseconds for what gets a processor.
const orphanTime = killTimeout / 2

// untilNone kills until there was nothing to kill.
func untilNone(kill func() (left int, err error)) error {
	end := time.Now().Add(orphanTime)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		left, err := kill()
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(end) {
			return errors.New("processes that a task left behind do not end")
		}
		time.Sleep(wait)
	}
}

// killOrphans kills and reaps the children of this process that are in nobody's
// list, with all that is below them: they are what ended tasks left behind.
func killOrphans(known map[int]bool) (left int, err error) {
	self := os.Getpid()
	table, err := task.Processes()
	for _, st := range table {
		if st.Parent != self || known[st.PID] {
			continue
		}
		left++
		for _, below := range task.Descendants(table, st.PID) {
			signalOne(below, unix.SIGKILL)
		}
		signalOne(st, unix.SIGKILL)
		_, _ = unix.Wait4(st.PID, nil, unix.WNOHANG, nil)
	}
	return left, err
}
