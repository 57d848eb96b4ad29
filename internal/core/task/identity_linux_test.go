// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

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

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestIdentity_MatchesOneProcess(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	must.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	id, err := Identify(cmd.Process.Pid)
	must.NoError(t, err, must.Sprintf("%+v", id))
	must.True(t, id.Alive(), must.Sprintf("%+v", id))
	for name, other := range map[string]Identity{
		"started at another time": {BootID: id.BootID, PID: id.PID, Start: id.Start + 1},
		"of another boot":         {BootID: "another", PID: id.PID, Start: id.Start},
		"of no process":           {BootID: id.BootID},
	} {
		test.False(t, other.Alive(), test.Sprintf("a process %s is alive", name))
	}
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	test.False(t, id.Alive(), test.Sprint("alive after it was reaped"))
}

func TestReadStat_ReadsUnusualNames(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	must.NoError(t, err)
	name := filepath.Join(t.TempDir(), "a) Z 1 (b")
	must.NoError(t, os.Symlink(sleep, name))
	cmd := exec.Command(name, "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must.NoError(t, cmd.Start())
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	st, err := ReadStat(cmd.Process.Pid)
	must.NoError(t, err, must.Sprintf("%+v", st))
	must.Eq(t, os.Getpid(), st.Parent, must.Sprintf("%+v", st))
	must.Eq(t, st.PID, st.Session, must.Sprintf("%+v", st))
	must.Eq(t, st.PID, st.Group, must.Sprintf("%+v", st))
	test.False(t, st.Zombie, test.Sprintf("%+v", st))
}

func TestReadStat_DetectsAZombie(t *testing.T) {
	cmd := exec.Command("sh", "-c", "exit 7")
	must.NoError(t, cmd.Start())
	defer cmd.Wait()
	for {
		st, err := ReadStat(cmd.Process.Pid)
		must.NoError(t, err)
		if st.Zombie {
			return
		}
	}
}

// leaderless is the environment variable that makes the test binary a process whose main thread has exited, while
// another thread runs.
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

func TestReadStat_ReportsNoZombieWhileAThreadRuns(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), leaderless+"=1")
	stdin, err := cmd.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	state := func() (string, Stat) {
		st, err := ReadStat(cmd.Process.Pid)
		must.NoError(t, err)
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		_, after, _ := strings.Cut(string(b), ") ")
		return after[:1], st
	}
	end := time.Now().Add(time.Minute)
	for letter, st := state(); letter != "Z"; letter, st = state() {
		must.False(t, st.Zombie, must.Sprintf("with its main thread: %s, %+v", letter, st))
		must.False(t, time.Now().After(end), must.Sprintf("with its main thread: %s, %+v", letter, st))
	}
	_, st := state()
	test.False(t, st.Zombie, test.Sprintf("while a thread runs: %+v", st))
	must.NoError(t, stdin.Close())
	for _, st := state(); !st.Zombie; _, st = state() {
		must.False(t, time.Now().After(end), must.Sprintf("after the exit of all threads: %+v", st))
	}
	var exit *exec.ExitError
	err = cmd.Wait()
	must.True(t, errors.As(err, &exit), must.Sprintf("ended with %v", err))
	test.Eq(t, 7, exit.ExitCode(), test.Sprintf("ended with %v", err))
}

func TestProcesses_ReturnsProcessesOfTheSession(t *testing.T) {
	cmd := exec.Command("sh", "-c", "setsid sleep 60 & other=$!; sh -c 'sleep 60 & echo; wait' & wait $!; kill $other")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	defer cmd.Wait()
	id, err := Identify(cmd.Process.Pid)
	must.NoError(t, err)
	_, err = out.Read(make([]byte, 1)) // returns once the innermost process runs
	must.NoError(t, err)
	var found []Stat
	testsupport.Eventually(t, "the process of setsid has left the session", func() bool {
		found = (&State{Identity: id}).Processes()
		return len(found) == 3
	})
	for _, st := range found {
		test.Eq(t, id.PID, st.Session)
	}
	later := id
	later.Start++
	test.Nil(t, (&State{Identity: later}).Processes(), test.Sprint("processes of a session whose leader is gone"))
	for _, st := range found {
		if st.PID != id.PID {
			_ = syscall.Kill(st.PID, syscall.SIGKILL)
		}
	}
}
