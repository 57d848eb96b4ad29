// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// zombie is a child that has ended and is not reaped before the end of the test.
func zombie(t *testing.T, args ...string) task.Identity {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Wait() })
	id, err := task.Identify(cmd.Process.Pid)
	must.NoError(t, err)
	// dead, and off its processor: the mark is there
	testsupport.Eventually(t, "it is a zombie", func() bool {
		st, err := task.ReadStat(id.PID)
		return err == nil && st.Zombie && (st.Permitted || !marks(t))
	})
	return id
}

// kernel reports whether the kernel is at least of this version.
func kernel(t *testing.T, major, minor int) bool {
	t.Helper()
	var u unix.Utsname
	must.NoError(t, unix.Uname(&u))
	var a, b int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b)
	must.NoError(t, err)
	return a > major || a == major && b >= minor
}

func marks(t *testing.T) bool { return kernel(t, 5, 17) }

func always(p proof) func() proof { return func() proof { return p } }

func never(t *testing.T) func() proof {
	return func() proof {
		t.Error("a proof is asked for where there is nothing to believe")
		return proof{}
	}
}

// Where the kernel reports the child's end wrongly, /proc is not trusted.
func TestProof_IsNeededToTrustProc(t *testing.T) {
	id := zombie(t, "sh", "-c", "exit 7")
	e, dead := exitInProc(id, always(proof{}))
	must.Nil(t, e, must.Sprintf("without a proof: %+v, a zombie: %v", e, dead))
	test.True(t, dead, test.Sprintf("without a proof: %+v, a zombie: %v", e, dead))
	e, dead = exitInProc(id, always(proof{pidfd: true, marks: true}))
	must.Nil(t, e, must.Sprintf("with a proof of something else: %+v, a zombie: %v", e, dead))
	test.True(t, dead, test.Sprintf("with a proof of something else: %+v, a zombie: %v", e, dead))
	if e, dead := exitInProc(id, always(proof{proc: true, marks: marks(t)})); e == nil || e.Code != 7 || !dead {
		t.Errorf("with a proof: %+v, a zombie: %v", e, dead)
	}
	other := id
	other.Start++
	e, dead = exitInProc(other, never(t))
	must.Nil(t, e, must.Sprintf("another process of that pid: %+v, a zombie: %v", e, dead))
	test.False(t, dead, test.Sprintf("another process of that pid: %+v, a zombie: %v", e, dead))
	self, err := task.Identify(os.Getpid())
	must.NoError(t, err)
	e, dead = exitInProc(self, never(t))
	must.Nil(t, e, must.Sprintf("one that runs: %+v, a zombie: %v", e, dead))
	test.False(t, dead, test.Sprintf("one that runs: %+v, a zombie: %v", e, dead))
}

// The child's first thread and its process end in two ways: the kernel must report the second.
func TestProof_DistinguishesTheProcessFromItsFirstThread(t *testing.T) {
	test.NotEq(t, codeProcess, codeFirstThread, test.Sprint("the two can't be distinguished"))
	may := os.Geteuid() != 0 || tracesAll() // a container may have taken that from root
	want := proof{done: true, proc: may, marks: may, pidfd: kernel(t, 6, 15)}
	testsupport.Eventually(t, fmt.Sprintf("%+v is proved", want), func() bool {
		// a child that got no processor proves less
		pid, pidfd, err := startProver()
		must.NoError(t, err)
		p := finishProof(pid, pidfd)
		test.Nil(t, peek(pid), test.Sprint("the child is not reaped"))
		return p == want || !kernel(t, 5, 17)
	})

	// how it ends, seen by its parent: a thread of it after the first one
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{argv0, roleProve}
	must.NoError(t, cmd.Start())
	both := false
	testsupport.Eventually(t, "it is dead", func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		st, err := task.ReadStat(cmd.Process.Pid)
		both = both || strings.Contains(string(b), ") Z") && err == nil && !st.Zombie
		return peek(cmd.Process.Pid) != nil
	})
	_ = cmd.Wait()
	test.Eq(t, codeProcess, cmd.ProcessState.ExitCode(), test.Sprint("it ended with"))
	t.Logf("seen with its first thread dead and another running: %v", both) // a matter of luck
}

// Without permission /proc shows 0, which looks like success.
func TestProof_DoesNotTakeAnUnreadableExitForSuccess(t *testing.T) {
	testsupport.NeedRoot(t)
	id := zombie(t, "sh", "-c", "exit 7")
	success := zombie(t, "true")
	for _, p := range []proof{{proc: true, marks: marks(t)}, {proc: true}} {
		if e, _ := exitInProc(success, always(p)); e == nil || e.Code != 0 {
			t.Errorf("%+v: success is reported as %+v", p, e)
		}
		testsupport.AsUser(t, strangerUID, func() error {
			for _, id := range []task.Identity{id, success} {
				e, dead := exitInProc(id, always(p))
				must.Nil(t, e, must.Sprintf("%+v: a stranger reads %+v, a zombie: %v", p, e, dead))
				test.True(t, dead, test.Sprintf("%+v: a stranger reads %+v, a zombie: %v", p, e, dead))
			}
			return nil
		})
	}
}

// A security module may refuse what the capability promises: the kernel's mark decides.
func TestProof_TrustsTheKernelsMarkOverACapability(t *testing.T) {
	refused := task.Stat{Zombie: true}
	test.False(t, (proof{proc: true, marks: true}).believes(refused),
		test.Sprint("an exit code is believed that could not be read"))
	test.True(t, (proof{proc: true}).believes(refused),
		test.Sprint("on a kernel without the mark nothing is believed"))
}

// The exit may become known between the look at the pidfd and the end of the process.
func TestWitness_LooksOnceMoreAfterTheReaping(t *testing.T) {
	for name, row := range map[string]struct {
		known int // at which look
		want  task.Exit
	}{
		"known at once":             {1, task.Exit{Code: 7}},
		"known when it is reaped":   {2, task.Exit{Code: 7}},
		"never, on an older kernel": {9, task.Exit{Lost: true}},
		"known too late":            {3, task.Exit{Lost: true}},
	} {
		t.Run(name, func(t *testing.T) {
			looks := 0
			e := witness{
				inProc: func() (*task.Exit, bool) { return nil, false },
				inInfo: func() (unix.WaitStatus, bool) { looks++; return 7 << 8, looks >= row.known },
				reaped: func() bool { return looks > 0 },
			}.exit(time.Now().Add(time.Minute))
			must.Eq(t, row.want.Code, e.Code, must.Sprintf("it is %+v, want %+v", e, row.want))
			test.Eq(t, row.want.Lost, e.Lost, test.Sprintf("it is %+v, want %+v", e, row.want))
		})
	}
}

// A zombie is waited for until the deadline.
func TestWitness_GivesUpOnAZombieThatIsNotReaped(t *testing.T) {
	asked := 0
	w := witness{
		inProc: func() (*task.Exit, bool) { asked++; return nil, true },
		inInfo: func() (unix.WaitStatus, bool) { return 0, false },
		reaped: func() bool { t.Error("a zombie is not reaped"); return true },
	}
	e := w.exit(time.Now().Add(20 * time.Millisecond))
	must.True(t, e.Lost, must.Sprintf("it is %+v after %d looks", e, asked))
	must.StrContains(t, e.Reason, "does not reap it", must.Sprintf("it is %+v after %d looks", e, asked))
	test.NotEq(t, 0, asked, test.Sprintf("it is %+v after %d looks", e, asked))
}
