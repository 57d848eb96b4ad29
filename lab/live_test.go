// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// live returns a lab in a temporary directory, with the plugins of this checkout. It is removed at the end of the test.
func live(t *testing.T) (*Lab, *bytes.Buffer) {
	t.Helper()
	root, err := build.Root(".")
	must.NoError(t, err)
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // Python tasks run as nobody, who must reach dir
		t.Fatal(err)
	}
	var b bytes.Buffer
	l := &Lab{
		root: root, dir: filepath.Join(dir, "lab"), runtime: agent.Host, port: freePort(t),
		steps: term.New(&b), out: &b, errOut: &b,
		firstOutput: time.Minute, docker: agent.DockerAnswers,
	}
	t.Cleanup(func() {
		test.NoError(t, l.Down(context.Background()))
	})
	return l, &b
}

// freePort returns a port outside the range of private agents. Because the lab listens only later, a socket reserves
// the port against other test runs on this machine until the test ends.
func freePort(t *testing.T) int {
	t.Helper()
	for p := 9646; p < 9746; p++ {
		mine, err := net.Listen("unix", fmt.Sprintf("@outrider-lab-test-%d", p)) // an abstract socket leaves no file
		if err != nil {
			continue
		}
		if free(p) {
			t.Cleanup(func() { mine.Close() })
			return p
		}
		mine.Close()
	}
	t.Fatal("no free port")
	return 0
}

func jobFile(t *testing.T, kind, name, driver, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".nomad.hcl")
	program := `command = "/bin/sh"`
	if driver == "python" {
		program = `code = "import os, sys; os.execv('/bin/sh', ['sh'] + sys.argv[1:])"`
	}
	text := `job "` + name + `" {
  type = "` + kind + `"
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "t" {
      driver = "` + driver + `"
      config {
        ` + program + `
        args = ["-c", "` + script + `"]
      }
      resources {
        cpu    = 20
        memory = 20
      }
    }
  }
}
`
	must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// slowScheduler pauses Nomad's scheduler for one second, without waiting for its end.
func slowScheduler(t *testing.T, a agent.Agent) {
	t.Helper()
	brake := func(on bool) error {
		c, _, err := a.Client().Operator().SchedulerGetConfiguration(nil)
		if err != nil {
			return err
		}
		c.SchedulerConfig.PauseEvalBroker = on
		_, _, err = a.Client().Operator().SchedulerSetConfiguration(c.SchedulerConfig, nil)
		return err
	}
	must.NoError(t, brake(true))
	time.AfterFunc(time.Second, func() {
		test.NoError(t, brake(false))
	})
}

// lines collects the output of a command that runs at the same time.
type lines struct {
	sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.Buffer.Write(b)
}

func (l *lines) text() string {
	l.Lock()
	defer l.Unlock()
	return l.String()
}

// running returns the start times of the running tasks, by allocation and task.
func running(t *testing.T, a agent.Agent) map[string]time.Time {
	t.Helper()
	list, _, err := a.Client().Allocations().List(&api.QueryOptions{Namespace: "*"})
	must.NoError(t, err)
	found := map[string]time.Time{}
	for _, alloc := range list {
		for name, s := range alloc.TaskStates {
			if s.State == "running" {
				found[alloc.ID+"/"+name] = s.StartedAt.UTC()
			}
		}
	}
	return found
}

// watched runs lab:watch with a job file, and saves the file with invalid and then with valid text.
func watched(t *testing.T, ctx context.Context, l *Lab) {
	t.Helper()
	ctx, stop := context.WithCancel(ctx)
	out, other := &lines{}, *l
	other.out, other.errOut, other.steps = out, out, term.New(out)
	path := jobFile(t, "batch", "watched", "exec-lite", "echo first; exec sleep 1000")
	ended := make(chan error, 1)
	go func() { ended <- other.Watch(ctx, path) }()
	shows := func(want string) {
		t.Helper()
		testsupport.Within(t, time.Minute, func() error {
			if !strings.Contains(out.text(), want) {
				return fmt.Errorf("no %q in %s", want, out.text())
			}
			return nil
		})
	}
	save := func(text string) {
		t.Helper()
		must.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		must.NoError(t, os.Rename(path+".new", path))
	}
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	shows("first")
	save("nonsense")
	shows("Error: ")
	shows("Waiting until " + path + " is saved")
	save(strings.Replace(string(text), "echo first; exec sleep 1000", "echo second", 1))
	shows("second")
	shows("is complete")
	stop()
	must.ErrorIs(t, <-ended, context.Canceled)
}

// TestLab_WorksFromUpToDown runs the commands in the order in which a developer uses them.
func TestLab_WorksFromUpToDown(t *testing.T) {
	l, out := live(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	step := func(t *testing.T, name, want string, f func() error) {
		t.Helper()
		out.Reset()
		err := f()
		must.NoError(t, err, must.Sprintf("%s: %v\n%s", name, err, out))
		must.StrContains(t, out.String(), want, must.Sprintf("%s: no %q in\n%s", name, want, out))
	}

	step(t, "up", "lab:run plugins/exec-lite/example/hello.nomad.hcl", func() error { return l.Up(ctx, With{}) })
	step(t, "up again", "Restarting the agent with the new build", func() error { return l.Up(ctx, With{}) })
	watched(t, ctx, l)
	step(t, "status", "raw_exec", func() error { return l.Status(ctx) })
	step(t, "status for programs", "exec-lite", func() error { return l.StatusJSON(ctx) })
	var got state
	must.NoError(t, json.Unmarshal(out.Bytes(), &got))
	must.True(t, got.Up)

	a, err := l.open(ctx)
	must.NoError(t, err)
	drivers := append(a.Info().Drivers(), "raw_exec")
	for _, d := range drivers {
		if d == remoteDriver {
			continue // it needs an SSH host, which this lab does not have
		}
		t.Run(d, func(t *testing.T) {
			if d == "python" {
				testsupport.NeedPython(t)
			}
			hello := jobFile(t, "batch", "hello-"+d, d, "echo to stdout; echo to stderr >&2; printf unended")
			for range 2 { // twice, because Nomad alone would not run an unchanged job again
				step(t, "run "+d, "is complete", func() error { return l.Run(ctx, hello) })
				for _, want := range []string{"to stdout\n", "to stderr\n", "unended\n"} {
					test.StrContains(t, out.String(), want, test.Sprintf("%s: no %q in\n%s", d, want, out))
				}
			}

			out.Reset()
			err := l.Run(ctx, jobFile(t, "batch", "fail-"+d, d, "echo last words; exit 3"))
			if err == nil || !strings.Contains(out.String(), "Exit Code: 3") || !strings.Contains(out.String(), "last words") {
				t.Errorf("%s: a failing job: %v\n%s", d, err, out)
			}

			step(t, "service "+d, "lab:logs -job=svc-"+d, func() error {
				return l.Run(ctx, jobFile(t, "service", "svc-"+d, d, "echo up; exec sleep 1000"))
			})
			test.StrContains(t, out.String(), "up\n",
				test.Sprintf("%s: first lines of a service are missing:\n%s", d, out))
		})
	}

	logs, following := &lines{}, *l
	following.out, following.errOut = logs, logs
	watching, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- following.Logs(watching, "svc-raw_exec") }()
	testsupport.Within(t, 5*time.Minute, func() error {
		if !strings.Contains(logs.text(), "up\n") {
			return fmt.Errorf("the job's output is not shown: %s", logs.text())
		}
		return nil
	})
	stop()
	must.Error(t, <-ended)
	step(t, "stop", "is stopped", func() error { return l.Stop(ctx, "svc-raw_exec") })
	testsupport.Eventually(t, "the end of the job", func() bool { return !runs(ctx, a.Client(), "svc-raw_exec") })
	out.Reset()
	test.Error(t, l.Stop(ctx, "svc-nothing"))
	test.StrContains(t, out.String(), "svc-nothing", test.Sprint("stop of a job that does not exist"))

	test.ErrorContains(t, l.Run(ctx, jobFile(t, "batch", "nowhere", "no_such_driver", "true")),
		"missing drivers",
		test.Sprint("a job that cannot be placed"))

	interrupted, interrupt := context.WithCancel(ctx)
	go func() {
		defer interrupt()
		_ = testsupport.Poll(5*time.Minute, func() error {
			if !runs(ctx, a.Client(), "endless") {
				return errors.New("the job does not run")
			}
			return nil
		})
	}()
	err = l.Run(interrupted, jobFile(t, "batch", "endless", "raw_exec", "sleep 1000"))
	var reason Interrupted
	must.True(t, errors.As(err, &reason), must.Sprintf("interrupted: %v", err))
	test.StrHasSuffix(t, "mage lab:stop endless", err.Error(), test.Sprintf("interrupted: %v", err))

	// Run must wait until the scheduler, which is slow here, has handled the removal of the old job.
	again := jobFile(t, "batch", "again", "raw_exec", "true")
	step(t, "run", "is complete", func() error { return l.Run(ctx, again) })
	slowScheduler(t, a)
	step(t, "run again behind a slow scheduler", "is complete", func() error { return l.Run(ctx, again) })

	pid := a.Info().Process.PID
	before := running(t, a)
	must.MapNotEmpty(t, before)
	step(t, "reload", "Restarting the agent with", func() error { return l.Reload(ctx) })
	test.Eq(t, before, running(t, a), test.Sprint("a task has ended, or was started again"))
	a, err = l.open(ctx)
	must.NoError(t, err)
	test.NotEq(t, pid, a.Info().Process.PID, test.Sprint("the agent was not restarted"))

	if err := a.Kill(ctx); err != nil { // like a crash
		t.Fatal(err)
	}
	test.ErrorIs(t, l.Stop(ctx, "x"), errEnded, test.Sprint("after a crash"))
	step(t, "run after a crash", "Restarting the agent with the new build", func() error {
		return l.Run(ctx, jobFile(t, "batch", "after", "exec-lite", "echo after a crash"))
	})

	step(t, "down", "stopped, files removed", func() error { return l.Down(ctx) })
	left, err := agent.Processes(a.Info().Dir)
	must.NoError(t, err, must.Sprint("processes of the agent"))
	test.SliceEmpty(t, left, test.Sprint("processes of the agent"))
	_, err = os.Stat(l.dir)
	test.True(t, os.IsNotExist(err), test.Sprintf("the directory still exists: %v", err))
	step(t, "down again", "nothing to do", func() error { return l.Down(ctx) })
}

func TestUp_CleansUpAfterAFailure(t *testing.T) {
	l, out := live(t)
	// a nomad binary that prints its version, but fails to start
	bad := filepath.Join(t.TempDir(), "nomad")
	const script = "#!/bin/sh\n[ $1 = version ] && echo 'Nomad v1.11.3' && exit 0\n" +
		"echo 'no luck today' >&2\nexit 1\n"
	os.WriteFile(bad, []byte(script), 0o755)
	t.Setenv("NOMAD_BIN", bad)
	err := l.Up(t.Context(), With{})
	test.ErrorContains(t, err, "no luck today", test.Sprint("error"))
	test.StrContains(t, out.String(), "failed Starting the agent",
		test.Sprintf("the step that failed is not shown:\n%s", out))
	_, err = os.Stat(l.dir)
	test.True(t, os.IsNotExist(err), test.Sprintf("the directory still exists: %v", err))
}

// TestLab_RunsWithASimulatedStick follows the README.
func TestLab_RunsWithASimulatedStick(t *testing.T) {
	testsupport.Long(t, "starts its own lab")
	l, out := live(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	does := func(want string, f func() error) {
		t.Helper()
		out.Reset()
		err := f()
		must.NoError(t, err, must.Sprintf("%v\n%s", err, out))
		must.StrContains(t, out.String(), want, must.Sprintf("no %q in\n%s", want, out))
	}
	serial := filepath.Join(l.root, "plugins", "usb", "example", "serial.nomad.hcl")

	// Run must start the lab, as in the README.
	hello := filepath.Join(l.root, "plugins", "exec-lite", "example", "hello.nomad.hcl")
	does("Hello from hello", func() error { return l.Run(ctx, hello) })
	must.StrContains(t, out.String(), "starting it",
		must.Sprintf("lab:run does not report that it starts the lab:\n%s", out))
	test.StrContains(t, out.String(), "/ui", test.Sprintf("lab:run does not report that it starts the lab:\n%s", out))
	test.ErrorContains(t, l.Run(ctx, serial), "missing devices", test.Sprint("a job that needs a stick, without a stick"))
	does("svc runs", func() error {
		return l.Run(ctx,
			jobFile(t, "service", "svc", "exec-lite", "echo up; exec sleep 1000"))
	})
	does("Restarting the agent with the new build", func() error { return l.Up(ctx, With{USB: "sim"}) })
	does("stick: hello from ", func() error { return l.Run(ctx, serial) })
	does("Restarting the agent with the new build", func() error { return l.Up(ctx, With{}) })
	a, err := l.open(ctx)
	must.NoError(t, err)
	before := running(t, a)
	must.MapLen(t, 2, before)
	does("Restarting the agent with the new build", func() error { return l.Reload(ctx) })
	test.Eq(t, before, running(t, a), test.Sprint("a task has ended, or was started again"))
	pull := func() {
		t.Helper()
		_, _, err := a.Client().Jobs().Deregister(simJob, false, nil)
		must.NoError(t, err)
	}
	// The stick is plugged in again before the server learns of its removal.
	pull()
	slowScheduler(t, a)
	does("10c4:ea60:0001  healthy", func() error { return l.Up(ctx, With{}) })
	test.True(t, runs(ctx, a.Client(), simJob),
		test.Sprint("lab:up ended before the stick was plugged in"))
	pull()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out.Reset()
		must.NoError(t, l.Status(ctx))
		if strings.Contains(out.String(), "No devices.") {
			break
		}
		must.False(t, time.Now().After(end), must.Sprintf("the stick is still listed:\n%s", out))
	}
	test.ErrorContains(t, l.Run(ctx, serial), "missing devices",
		test.Sprint("a job for a stick that is pulled out"))
	does("10c4:ea60:0001  healthy", func() error { return l.Up(ctx, With{}) })
	does("stopped, files removed", func() error { return l.Down(ctx) })
	left, err := agent.Processes(a.Info().Dir)
	must.NoError(t, err, must.Sprint("processes of the agent"))
	test.SliceEmpty(t, left, test.Sprint("processes of the agent"))
}
