package task

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestIdentity_IsOfOneProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	id, err := Identify(cmd.Process.Pid)
	if err != nil || !id.Alive() {
		t.Fatalf("%+v, %v", id, err)
	}
	for name, other := range map[string]Identity{
		"started at another time": {BootID: id.BootID, PID: id.PID, Start: id.Start + 1},
		"of another boot":         {BootID: "another", PID: id.PID, Start: id.Start},
		"of no process":           {BootID: id.BootID},
	} {
		if other.Alive() {
			t.Errorf("one %s is alive", name)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if id.Alive() {
		t.Error("alive after it was reaped")
	}
}

func TestReadStat_ReadsAwkwardNames(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "a) Z 1 (b")
	if err := os.Symlink(sleep, name); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	st, err := ReadStat(cmd.Process.Pid)
	if err != nil || st.Parent != os.Getpid() || st.Session != st.PID || st.Group != st.PID || st.Zombie {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestReadStat_HasAZombiesWaitStatus(t *testing.T) {
	cmd := exec.Command("sh", "-c", "exit 7")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	for {
		st, err := ReadStat(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if st.Zombie {
			if ws := syscall.WaitStatus(st.ExitCode); !ws.Exited() || ws.ExitStatus() != 7 {
				t.Errorf("wait status %#x", st.ExitCode)
			}
			return
		}
	}
}

// leaderless makes this program one of which only the main thread has ended.
const leaderless = "OUTRIDER_TEST_LEADERLESS"

func init() { // runs on the main thread
	if os.Getenv(leaderless) != "" {
		go func() {
			_, _ = os.Stdin.Read(make([]byte, 1))
			os.Exit(7)
		}()
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	}
}

func TestReadStat_SeesThreadsWithoutTheMainOne(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), leaderless+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	state := func() (string, Stat) {
		st, err := ReadStat(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		_, after, _ := strings.Cut(string(b), ") ")
		return after[:1], st
	}
	end := time.Now().Add(time.Minute)
	for says, st := state(); says != "Z"; says, st = state() {
		if st.Zombie || time.Now().After(end) {
			t.Fatalf("with its main thread: %s, %+v", says, st)
		}
	}
	if _, st := state(); st.Zombie {
		t.Errorf("it runs, and is %+v", st)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	for _, st := state(); !st.Zombie; _, st = state() {
		if time.Now().After(end) {
			t.Fatalf("it has ended, and is %+v", st)
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("it ended with %v", err)
	}
}

func TestTree_HasAllDescendants(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sh -c 'sleep 60 & echo; wait' & wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	id, err := Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // the innermost runs
		t.Fatal(err)
	}
	tree := Tree(id)
	if len(tree) != 3 || tree[0].PID != id.PID || tree[1].Parent != id.PID || tree[2].Parent != tree[1].PID {
		t.Errorf("%+v", tree)
	}
	for _, st := range tree {
		_ = syscall.Kill(st.PID, syscall.SIGKILL)
	}
	id.Start++
	if got := Tree(id); got != nil {
		t.Errorf("a tree of a process that is not there: %+v", got)
	}
}
