// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// What the kernel reports about exits of others' children is trusted after a test with a
// child whose exit is known: it is another user's, and its first thread ended in another
// way than the process. Before Linux 5.17 /proc/<pid>/stat has the first thread's exit code
// (kernel commit 2d18f7f45620, "exit: Use the correct exit_code in /proc/<pid>/stat", which
// some older kernels got, too), and a security module may take away what a capability
// promises: then it reads 0.

// proof is which sources were right.
type proof struct {
	done  bool // the child ended as it should
	proc  bool // /proc/<pid>/stat
	marks bool // and it shows whether the exit code may be read (task.Stat.Permitted)
	pidfd bool // the pidfd of a process that was reaped
}

// believes reports whether the exit code of a zombie that this process should be permitted
// to read is true. It is 0 without that permission, and nothing else.
func (p proof) believes(st task.Stat) bool {
	return p.proc && (st.ExitCode != 0 || st.Permitted || !p.marks)
}

// The child's exit codes, and its user id, which no other process has: none may signal it.
const (
	roleProve       = "prove"
	codeFirstThread = 3
	codeProcess     = 7
	proverID        = 1<<32 - 2
)

// init is the child's role. A program's init functions run on its first thread
// (runtime.LockOSThread), which no other function is.
func init() {
	if len(os.Args) == 2 && os.Args[0] == argv0 && os.Args[1] == roleProve {
		endInTwoWays()
	}
}

func endInTwoWays() {
	if os.Geteuid() == 0 && (syscall.Setresgid(proverID, proverID, proverID) != nil ||
		syscall.Setresuid(proverID, proverID, proverID) != nil) {
		os.Exit(1)
	}
	go func() {
		for end := time.Now().Add(proofTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
			b, _ := os.ReadFile("/proc/self/stat")
			if i := bytes.LastIndexByte(b, ')'); i > 0 && bytes.HasPrefix(b[i:], []byte(") Z")) {
				os.Exit(codeProcess)
			}
		}
		os.Exit(1) // the test has failed
	}()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, codeFirstThread, 0, 0) // of this thread alone
}

// proofTime bounds how long the child may take, which is milliseconds.
const proofTime = 10 * time.Second

// startProver starts the child. The caller reaps it and closes the pidfd.
func startProver() (pid, pidfd int, err error) {
	pidfd = -1
	pid, err = syscall.ForkExec("/proc/self/exe", []string{argv0, roleProve}, &syscall.ProcAttr{
		Sys: &syscall.SysProcAttr{PidFD: &pidfd},
	})
	return pid, pidfd, err
}

// finishProof looks at the child's end from outside, and reaps it.
func finishProof(pid, pidfd int) (p proof) {
	defer unix.Close(pidfd)
	task.Dead(pidfd, 2*proofTime)
	_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) // which does nothing to a dead one
	if e := peek(pid); e != nil && e.Code == codeProcess {
		p.done = true
		// a zombie has the mark with a small delay; without the mark the proof still holds
		for end := time.Now().Add(200 * time.Millisecond); !p.marks && time.Now().Before(end); time.Sleep(time.Millisecond) {
			st, err := task.ReadStat(pid)
			right := err == nil && st.Zombie && unix.WaitStatus(st.ExitCode).ExitStatus() == codeProcess
			p.proc, p.marks = right, right && st.Permitted
		}
	}
	for _, err := unix.Wait4(pid, nil, 0, nil); err == unix.EINTR; {
		_, err = unix.Wait4(pid, nil, 0, nil)
	}
	ws, ok := pidfdExit(pidfd)
	p.pidfd = ok && ws.ExitStatus() == codeProcess
	return p
}

// proved runs the test when the supervisor first has to observe an exit, and again if the
// child did not finish.
func (s *server) proved() proof {
	s.proving.Lock()
	defer s.proving.Unlock()
	if s.proof.done {
		return s.proof
	}
	s.forks.Lock()
	pid, pidfd, err := startProver()
	if err == nil {
		s.mu.Lock()
		s.launchers[pid] = true // or it would be taken for an orphan
		s.mu.Unlock()
	}
	s.forks.Unlock()
	if err == nil {
		s.proof = finishProof(pid, pidfd)
		s.forgetLauncher(pid)
	}
	return s.proof
}

// SupportsPidfdExit reports whether this kernel has the exit status of a reaped process in
// its pidfd (Linux 6.15 and later). It tries with a child of its own.
func SupportsPidfdExit() bool {
	pid, pidfd, err := startProver()
	return err == nil && finishProof(pid, pidfd).pidfd
}
