package environment

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/builders"
)

// helpWith is a process with these user ids (real, effective, saved), until its input ends.
func helpWith(ids string) {
	var real, effective, saved uintptr
	_, err := fmt.Sscan(ids, &real, &effective, &saved)
	fatal(err)
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_SETRESUID, real, effective, saved); errno != 0 {
		fatal(errno)
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// with starts a process with these user ids, and returns when it has them. It ends with the test at the latest.
func with(t *testing.T, real, effective, saved uint32) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{fmt.Sprintf("%s=ids %d %d %d", role, real, effective, saved)}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("it said %q, %v", line, err)
	}
	return cmd
}

// only is a user of this run of the tests alone, in a directory of its own.
func only(t *testing.T) *Users {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: without it there is one user only")
	}
	id := uint32(1_850_000_000 + os.Getpid())
	return &Users{Dir: filepath.Join(t.TempDir(), "builders"), Only: &User{UID: id, GID: id}}
}

func TestUsers_GiveEachBuildItsOwn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: without it there is one user only")
	}
	one, other := &Users{Dir: builders.Dir}, &Users{Dir: builders.Dir} // as the plugins of two agents have
	var ids []uint32
	for n := range 6 {
		taken, err := []*Users{one, other}[n%2].Take(t.Context(), nil)
		must(t, err)
		defer taken.Release()
		if slices.Contains(ids, taken.UID) || taken.UID == Prober || !builders.Reserved(taken.UID) || taken.GID != taken.UID {
			t.Errorf("build %d is user %d, group %d; others are %v", n, taken.UID, taken.GID, ids)
		}
		ids = append(ids, taken.UID)
	}
}

func TestUsers_OnlyServesOneBuildAtATime(t *testing.T) {
	users := only(t)
	first, err := users.Take(t.Context(), nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := users.Take(ctx, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	second := make(chan error)
	go func() {
		taken, err := users.Take(t.Context(), first.Release)
		if err == nil {
			taken.Release()
		}
		second <- err
	}()
	if err := <-second; err != nil {
		t.Error(err)
	}
	names, err := os.ReadDir(users.Dir)
	if err != nil || len(names) != 1 || names[0].Name() != fmt.Sprint(users.Only.UID) {
		t.Errorf("left is %v, %v", names, err)
	}
	if is, err := builders.Is(users.Dir, users.Only.UID); !is || err != nil {
		t.Errorf("other drivers do not know the user: %v", err)
	}
}

func TestUsers_SkipThoseWithProcesses(t *testing.T) {
	users := only(t)
	cmd := with(t, users.Only.UID, users.Only.UID, users.Only.UID)
	if _, err := users.Take(t.Context(), nil); err == nil || !strings.Contains(err.Error(), fmt.Sprint(cmd.Process.Pid)) {
		t.Errorf("got %v", err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process of a user that is not reserved: %v", err)
	}
}

func TestBuilder_ClearKillsEachProcess(t *testing.T) {
	users := only(t)
	id := users.Only.UID
	taken, err := users.Take(t.Context(), nil)
	must(t, err)
	defer taken.Release()
	for name, ids := range map[string][3]uint32{
		"all its ids": {id, id, id}, "its real id": {id, 0, 0}, "its effective id": {0, id, 0}, "its saved id": {0, 0, id},
	} {
		t.Run(name, func(t *testing.T) {
			other := with(t, id+1, id+1, id+1)
			cmd := with(t, ids[0], ids[1], ids[2])
			must(t, taken.Clear())
			if has, _, err := isOf(cmd.Process.Pid, id); has || err != nil {
				t.Fatalf("it is still there: %v", err)
			}
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Errorf("it ended by %v", err)
			}
			if has, _, err := isOf(other.Process.Pid, id+1); !has || err != nil {
				t.Errorf("another user's process: %v, %v", has, err)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
