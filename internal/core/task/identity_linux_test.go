package task

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

func TestIdentityIsOfOneProcessForEver(t *testing.T) {
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

func TestReadStatOfAProgramWithAnAwkwardName(t *testing.T) {
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
	if err != nil || st.Parent != os.Getpid() || st.Session != st.PID || st.Group != st.PID || st.State == 'Z' {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestReadStatTellsAZombiesWaitStatus(t *testing.T) {
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
		if st.State == 'Z' {
			if ws := syscall.WaitStatus(st.ExitCode); !ws.Exited() || ws.ExitStatus() != 7 {
				t.Errorf("wait status %#x", st.ExitCode)
			}
			return
		}
	}
}

func TestTreeHasEveryProcessBelowOne(t *testing.T) {
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
