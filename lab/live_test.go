package lab

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/image"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// live is a lab of this checkout with a state directory of its own.
func live(t *testing.T) (*Lab, *bytes.Buffer) {
	t.Helper()
	root, err := build.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	ports := 0
	if free(defaultPort) {
		// somebody may want the usual port for a lab of his own while tests run
		ports = freePort(t)
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { // python's tasks are nobody's
		t.Fatal(err)
	}
	var b bytes.Buffer
	l := &Lab{
		root: root, dir: filepath.Join(dir, "lab"), runtime: agent.Host, port: ports,
		steps: term.New(&b), out: &b, errOut: &b,
		firstOutput: time.Minute, docker: agent.DockerAnswers, image: image.Ensure,
		hasImage: image.Exists, removeImage: image.Remove,
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l, &b
}

// freePort is none of those that private agents pick.
func freePort(t *testing.T) int {
	t.Helper()
	for p := 9646; p < 9746; p++ {
		if free(p) {
			return p
		}
	}
	t.Fatal("no free port")
	return 0
}

func jobFile(t *testing.T, kind, name, driver, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".nomad.hcl")
	program := `command = "/bin/sh"`
	if driver == pythonDriver {
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
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// quietly is the same lab for another command at the same time.
func quietly(l *Lab) *Lab {
	other := *l
	other.out, other.steps = io.Discard, term.New(io.Discard)
	return &other
}

// slowScheduler pauses the scheduler for a second.
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
	if err := brake(true); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, func() {
		if err := brake(false); err != nil {
			t.Error(err)
		}
	})
}

// TestLab_FromUpToDown walks the way that a developer goes.
func TestLab_FromUpToDown(t *testing.T) {
	l, out := live(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	step := func(name string, want string, f func() error) {
		t.Helper()
		out.Reset()
		if err := f(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		if !strings.Contains(out.String(), want) {
			t.Fatalf("%s: no %q in\n%s", name, want, out)
		}
	}

	step("up", "lab:run plugins/exec-lite/example/hello.nomad.hcl", func() error { return l.Up(ctx, "") })
	step("up again", "is up already", func() error { return l.Up(ctx, "") })
	step("status", "raw_exec", func() error { return l.Status(ctx) })

	a, err := l.open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	drivers := append(a.Info().Drivers(), "raw_exec")
	for _, d := range drivers {
		hello := jobFile(t, "batch", "hello-"+d, d, "echo to stdout; echo to stderr >&2; printf unended")
		for range 2 { // Nomad alone would not run an unchanged job again
			step("run "+d, "is complete", func() error { return l.Run(ctx, hello) })
			for _, want := range []string{"to stdout\n", "to stderr\n", "unended\n"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%s: no %q in\n%s", d, want, out)
				}
			}
		}

		out.Reset()
		err := l.Run(ctx, jobFile(t, "batch", "fail-"+d, d, "echo last words; exit 3"))
		if err == nil || !strings.Contains(err.Error(), "Exit Code: 3") || !strings.Contains(out.String(), "last words") {
			t.Errorf("%s: a failing job: %v\n%s", d, err, out)
		}

		step("service "+d, "lab:logs -job=svc-"+d, func() error {
			return l.Run(ctx, jobFile(t, "service", "svc-"+d, d, "echo up; exec sleep 1000"))
		})
		if !strings.Contains(out.String(), "up\n") {
			t.Errorf("%s: first lines of a service are missing:\n%s", d, out)
		}
	}

	stopped := make(chan error, 1)
	time.AfterFunc(2*time.Second, func() { stopped <- quietly(l).Stop(ctx, "svc-raw_exec") })
	step("logs of a job", "up\n", func() error { return l.Logs(ctx, "svc-raw_exec") })
	if err := <-stopped; err != nil || !strings.Contains(out.String(), "Job svc-raw_exec has ended") {
		t.Errorf("stop: %v\n%s", err, out)
	}
	if err := l.Stop(ctx, "svc-nothing"); err == nil || !strings.Contains(err.Error(), "there are: ") {
		t.Errorf("stop of a job that is not there: %v", err)
	}

	if err := l.Run(ctx, jobFile(t, "batch", "nowhere", "no_such_driver", "true")); err == nil ||
		!strings.Contains(err.Error(), "missing drivers (1 node); driver no_such_driver is not in this lab") {
		t.Errorf("a job without a place: %v", err)
	}

	interrupted, interrupt := context.WithCancel(ctx)
	time.AfterFunc(3*time.Second, interrupt)
	err = l.Run(interrupted, jobFile(t, "batch", "endless", "raw_exec", "sleep 1000"))
	var told Interrupted
	if !errors.As(err, &told) || !strings.HasSuffix(err.Error(), "mage lab:stop endless") {
		t.Errorf("interrupted: %v", err)
	}

	// a scheduler that is slow to hear of the removal of a job that is run again
	again := jobFile(t, "batch", "again", "raw_exec", "true")
	step("run", "is complete", func() error { return l.Run(ctx, again) })
	slowScheduler(t, a)
	step("run again behind a slow scheduler", "is complete", func() error { return l.Run(ctx, again) })

	pid, err := a.PID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	step("reload", "running tasks lived on", func() error { return l.Reload(ctx, "") })
	if b, err := l.open(ctx); err != nil {
		t.Fatal(err)
	} else if now, err := b.PID(ctx); err != nil || now == pid {
		t.Errorf("the agent was not restarted: pid %d, %v", now, err)
	} else {
		a = b
	}

	if err := a.Kill(ctx); err != nil { // a crash
		t.Fatal(err)
	}
	if err := l.Stop(ctx, "x"); !errors.Is(err, errEnded) {
		t.Errorf("after a crash: %v", err)
	}
	step("run after a crash", "Starting the agent again", func() error {
		return l.Run(ctx, jobFile(t, "batch", "after", "exec-lite", "echo after a crash"))
	})

	step("down", "they are gone, with their files", func() error { return l.Down(ctx) })
	if left, err := a.Leftovers(ctx); err != nil || len(left) != 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	if _, err := os.Stat(l.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
	step("down again", "nothing to do", func() error { return l.Down(ctx) })
}

func TestUp_LeavesNothingAfterAFailure(t *testing.T) {
	l, out := live(t)
	// a nomad that says its version and then does not start
	bad := filepath.Join(t.TempDir(), "nomad")
	const script = "#!/bin/sh\n[ $1 = version ] && echo 'Nomad v1.11.3' && exit 0\n" +
		"echo 'no luck today' >&2\nexit 1\n"
	os.WriteFile(bad, []byte(script), 0o755)
	t.Setenv("NOMAD_BIN", bad)
	err := l.Up(t.Context(), "")
	if err == nil || !strings.Contains(err.Error(), "no luck today") {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(out.String(), "failed Starting the agent") {
		t.Errorf("the step that failed is not shown:\n%s", out)
	}
	if _, err := os.Stat(l.dir); !os.IsNotExist(err) {
		t.Errorf("the directory is left: %v", err)
	}
}

// TestLab_WithASimulatedStick is what the README shows.
func TestLab_WithASimulatedStick(t *testing.T) {
	l, out := live(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	does := func(want string, f func() error) {
		t.Helper()
		out.Reset()
		if err := f(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !strings.Contains(out.String(), want) {
			t.Fatalf("no %q in\n%s", want, out)
		}
	}
	serial := filepath.Join(l.root, "plugins", "usb", "example", "serial.nomad.hcl")

	// from no lab, as the README goes
	hello := filepath.Join(l.root, "plugins", "exec-lite", "example", "hello.nomad.hcl")
	does("Hello from hello", func() error { return l.Run(ctx, hello) })
	if !strings.Contains(out.String(), "starting it") || !strings.Contains(out.String(), "/ui") {
		t.Errorf("it does not report that it starts the lab:\n%s", out)
	}
	if err := l.Run(ctx, serial); err == nil || !strings.Contains(err.Error(), "missing devices") ||
		!strings.Contains(out.String(), "lab:up -usb=sim") {
		t.Errorf("a job for a stick in a lab without: %v\n%s", err, out)
	}
	does("svc runs", func() error {
		return l.Run(ctx,
			jobFile(t, "service", "svc", "exec-lite", "echo up; exec sleep 1000"))
	})
	does("All 1 running tasks lived on", func() error { return l.Up(ctx, "sim") })
	if !strings.Contains(out.String(), "lab:run plugins/usb/example/serial.nomad.hcl") {
		t.Errorf("it does not say what to do with the stick:\n%s", out)
	}
	does("stick: hello from ", func() error { return l.Run(ctx, serial) })
	does("is up already", func() error { return l.Up(ctx, "") })
	does("usb-sim  stick  ", func() error { return l.Reload(ctx, "usb") })
	if !strings.Contains(out.String(), "lived on") {
		t.Errorf("the stick was started again:\n%s", out)
	}

	a, err := l.open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pull := func() {
		t.Helper()
		if _, _, err := a.Client().Jobs().Deregister(simJob, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	// in again before the server has heard that it was out
	pull()
	slowScheduler(t, a)
	does("10c4:ea60:0001  healthy", func() error { return l.Up(ctx, "") })
	if !runs(ctx, a.Client(), simJob) {
		t.Error("the lab is said to be up before the stick is plugged in")
	}
	pull()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out.Reset()
		if err := l.Status(ctx); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "No devices.") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the stick is still there:\n%s", out)
		}
	}
	if err := l.Run(ctx, serial); err == nil || !strings.Contains(err.Error(), "missing devices") {
		t.Errorf("a job for a stick that is pulled out: %v", err)
	}
	does("10c4:ea60:0001  healthy", func() error { return l.Up(ctx, "") })
	does("lived on", func() error { return l.Up(ctx, "none") })
	if runs(ctx, a.Client(), simJob) || !strings.Contains(out.String(), "No devices.") {
		t.Errorf("the stick is still there:\n%s", out)
	}
	does("they are gone, with their files", func() error { return l.Down(ctx) })
	if left, err := a.Leftovers(ctx); err != nil || len(left) != 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}
