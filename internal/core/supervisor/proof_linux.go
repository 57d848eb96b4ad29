package supervisor

import (
	"bytes"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// What the kernel tells of the exits of others is believed after it was right about a
// process of which all is known: another user's, whose first thread ended in another way
// than the process. Before Linux 5.17 /proc/<pid>/stat has the first thread's exit code
// (kernel commit 2d18f7f45620, "exit: Use the correct exit_code in /proc/<pid>/stat", which
// some older kernels got, too), and a security module may take away what a capability
// promises: then it reads 0.

// proof is which sources were right.
type proof struct {
	done  bool // the child ended as it should
	proc  bool // /proc/<pid>/stat
	marks bool // and it says itself whether it may tell (task.Stat.Permitted)
	pidfd bool // the pidfd of a process that was reaped
}

// believes reports whether the exit code of a zombie that this process should be permitted
// to read can be taken for true. It is 0 without that permission, and nothing else.
func (p proof) believes(st task.Stat) bool {
	return p.proc && (st.ExitCode != 0 || st.Permitted || !p.marks)
}

// The child's codes, and the user that it becomes: one that nobody else has who could
// reach it with a signal.
const (
	roleProve       = "prove"
	codeFirstThread = 3
	codeProcess     = 7
	proverID        = 1<<32 - 2
)

// init is the child's role. A program's init functions run on its first thread
// (runtime.LockOSThread), which nothing else could be sure of.
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
		os.Exit(1) // nothing can be proved
	}()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, codeFirstThread, 0, 0) // of this thread alone
}

// proofTime bounds how long the child may take. It is milliseconds.
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
		// a zombie has the mark a moment after it is one; where it never has, that is no loss
		for end := time.Now().Add(200 * time.Millisecond); !p.marks && time.Now().Before(end); time.Sleep(time.Millisecond) {
			st, err := task.ReadStat(pid)
			told := err == nil && st.Zombie && unix.WaitStatus(st.ExitCode).ExitStatus() == codeProcess
			p.proc, p.marks = told, told && st.Permitted
		}
	}
	for _, err := unix.Wait4(pid, nil, 0, nil); err == unix.EINTR; {
		_, err = unix.Wait4(pid, nil, 0, nil)
	}
	ws, ok := pidfdExit(pidfd)
	p.pidfd = ok && ws.ExitStatus() == codeProcess
	return p
}

// proved is asked of a supervisor for the first time when it has to observe an exit,
// and again where the child did not get to its end.
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

// SupportsPidfdExit reports whether this kernel tells a process's exit to whoever holds a
// pidfd (Linux 6.15 and later). It asks about a child of its own.
func SupportsPidfdExit() bool {
	pid, pidfd, err := startProver()
	return err == nil && finishProof(pid, pidfd).pidfd
}
