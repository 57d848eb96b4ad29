// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// before returns a driver that calls f before each start.
func before(f func(context.Context, testRequest) error) testInstance {
	w := testInstance{}
	w.command = func(ctx context.Context, r testRequest) (*task.Command, error) {
		if err := f(ctx, r); err != nil {
			return nil, err
		}
		return program(r)
	}
	return w
}

func await[T any](t *testing.T, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(time.Minute):
		t.Fatalf("never came: %s", what)
	}
	return v
}

func TestRequestEvent_IsDeliveredDuringTheStart(t *testing.T) {
	proceed := make(chan struct{})
	a := startInstance(t, before(func(_ context.Context, r testRequest) error {
		r.Event("Building %d packages", 3)
		<-proceed
		return nil
	}), nil)
	events, err := a.TaskEvents(t.Context())
	must.NoError(t, err)
	testsupport.Eventually(t, "the driver has registered the listener", a.driver.hasListeners)
	cfg := a.shell("exit 0", "")
	began := time.Now()
	started := make(chan error, 1)
	go func() {
		_, _, err := a.StartTask(cfg)
		started <- err
	}()
	e := await(t, "the event", events)
	must.Eq(t, "Building 3 packages", e.Message, must.Sprintf("got %+v", e))
	must.Eq(t, cfg.ID, e.TaskID, must.Sprintf("got %+v", e))
	must.Eq(t, "web", e.TaskName, must.Sprintf("got %+v", e))
	must.Eq(t, cfg.AllocID, e.AllocID, must.Sprintf("got %+v", e))
	test.False(t, e.Timestamp.Before(began), test.Sprintf("got %+v", e))
	select {
	case err := <-started:
		t.Errorf("the start had ended: %v", err)
	default:
	}
	close(proceed)
	must.NoError(t, await(t, "the end of the start", started))
	a.wait(cfg.ID)
	a.destroy(cfg.ID)
}

func TestRequestEvent_IsPendingUntilNomadListens(t *testing.T) {
	a := startInstance(t, before(func(_ context.Context, r testRequest) error {
		r.Event("Building")
		return errors.New("no such package")
	}), nil)
	cfg := a.shell("exit 0", "")
	if _, _, err := a.StartTask(cfg); err == nil {
		t.Fatal("it started")
	}
	events, err := a.TaskEvents(t.Context())
	must.NoError(t, err)
	e := await(t, "the event", events)
	must.Eq(t, "Building", e.Message, must.Sprintf("got %+v", e))
	test.Eq(t, cfg.ID, e.TaskID, test.Sprintf("got %+v", e))
}

func TestRequestFinally_RunsOnceAfterEveryStart(t *testing.T) {
	for name, c := range map[string]struct {
		program string
		fail    error
		state   bool // whether the task's state exists during the calls
	}{
		"the task runs":            {"/bin/true", nil, true},
		"the command fails":        {"/bin/true", errors.New("no such package"), false},
		"the command is empty":     {"", nil, false},
		"the program is missing":   {"/no/such/program", nil, false},
		"the command has a NUL":    {"/bin/true\x00", nil, false},
		"the error is recoverable": {"/no/such/program", structs.NewRecoverableError(errors.New("later"), true), false},
	} {
		t.Run(name, func(t *testing.T) {
			var calls []string
			var state []bool
			w := testInstance{}
			w.command = func(_ context.Context, r testRequest) (*task.Command, error) {
				for _, name := range []string{"first", "second"} {
					r.Finally(func() {
						calls = append(calls, name)
						state = append(state, testsupport.Exists(r.StateDir()))
					})
				}
				return r.Run(c.program), c.fail
			}
			a := startInstance(t, w, nil)
			cfg := a.shell("", "")
			_, _, err := a.StartTask(cfg)
			test.Eq(t, c.state, (err == nil), test.Sprintf("the start: %v", err))
			must.SliceEqOp(t, []string{"second", "first"}, calls,
				must.Sprintf("called %v, with the state there", calls))
			test.SliceEqOp(t, []bool{c.state, c.state}, state,
				test.Sprintf("called %v, with the state there", calls))
			if err == nil {
				a.wait(cfg.ID)
				a.destroy(cfg.ID)
			}
			test.SliceLen(t, 2, calls, test.Sprintf("called %v in all", calls))
		})
	}
}

func TestRequestStateDir_ExistsAsLongAsTheTask(t *testing.T) {
	var dir string
	var early bool
	a := startInstance(t, before(func(_ context.Context, r testRequest) error {
		dir, early = r.StateDir(), testsupport.Exists(r.StateDir())
		return nil
	}), nil)
	go1 := filepath.Join(t.TempDir(), "go")
	cfg := a.shell("while [ ! -e "+go1+" ]; do sleep 0.01; done; exit 4", "")
	th := wire(t, a.run(cfg))
	must.False(t, early, must.Sprintf("%q was there before the task: %v", dir, early))
	test.True(t, filepath.IsAbs(dir), test.Sprintf("%q was there before the task: %v", dir, early))
	for _, when := range []string{"while it runs", "after a restart of the plugin", "after its end",
		"after its end and a restart"} {
		if strings.Contains(when, "restart") {
			a.restart()
			test.True(t, testsupport.Exists(dir), test.Sprintf("it is gone between two plugins, %s", when))
			must.NoError(t, a.RecoverTask(th))
		}
		if when == "after its end" {
			must.NoError(t, os.WriteFile(go1, nil, 0o600))
		}
		if strings.Contains(when, "end") {
			r := a.wait(cfg.ID)
			test.Eq(t, 4, r.ExitCode, test.Sprintf("%s: got %+v", when, r))
		}
		test.True(t, testsupport.Exists(dir), test.Sprintf("it is gone %s", when))
	}
	a.destroy(cfg.ID)
	test.False(t, testsupport.Exists(dir), test.Sprint("it is there after DestroyTask"))
	bad := a.task(`command = "/no/such/program"`)
	if _, _, err := a.StartTask(bad); err == nil || testsupport.Exists(dir) {
		t.Errorf("after a failed start (%v), the directory exists: %v", err, testsupport.Exists(dir))
	}
}

func TestDefaultUser_AppliesToTasksWithoutAUser(t *testing.T) {
	testsupport.NeedRoot(t) // to run tasks as other users
	var told *task.User
	w := before(func(_ context.Context, r testRequest) error {
		told = r.User()
		return nil
	})
	w.defaultUser = "nobody"
	a := startInstance(t, w, map[string]any{"denied_host_uids": "1"})
	for user, want := range map[string]string{"": "nobody nobody 65534\n", "root": "root root 0\n", "bin": "bin bin 2\n"} {
		out, _ := a.result(a.shell("echo $(id -un) $USER $(id -u)", "", func(c *drivers.TaskConfig) { c.User = user }))
		if out != want || told == nil || !strings.HasSuffix(want, fmt.Sprintf(" %d\n", told.UID)) {
			t.Errorf("user %q: got %q, and Request.User is %+v", user, out, told)
		}
	}
	for user, want := range map[string]string{
		"daemon":      "user id 1 is not allowed on this node (denied_host_uids)",
		"nobody-here": `user "nobody-here" does not exist on this node`,
	} {
		w.defaultUser = user
		a := startInstance(t, w, map[string]any{"denied_host_uids": "1"})
		_, _, err := a.StartTask(a.shell("exit 0", ""))
		test.ErrorContains(t, err, want, test.Sprintf("default %q", user))
	}
	told = &task.User{}
	a = startInstance(t, before(func(_ context.Context, r testRequest) error {
		told = r.User()
		return nil
	}), nil)
	out, _ := a.result(a.shell("id -u", ""))
	must.Eq(t, "0\n", out, must.Sprintf("without a default: got %q, and Request.User", out))
	test.Nil(t, told, test.Sprintf("without a default: got %q, and Request.User", out))
}

func TestDefaultUser_IsIgnoredWithoutRoot(t *testing.T) {
	if !withoutRoot(t) {
		return
	}
	w := testInstance{}
	w.defaultUser = "root"
	a := startInstance(t, w, nil)
	out, _ := a.result(a.shell("id -u", ""))
	test.Eq(t, fmt.Sprintln(os.Geteuid()), out)
}

// listener collects the events of a driver.
type listener struct {
	mu       sync.Mutex
	messages []string
}

func listen(t *testing.T, a *agent) *listener {
	t.Helper()
	events, err := a.TaskEvents(t.Context())
	must.NoError(t, err)
	testsupport.Eventually(t, "the driver has registered the listener", a.driver.hasListeners)
	l := &listener{}
	go func() {
		for e := range events {
			l.mu.Lock()
			l.messages = append(l.messages, e.TaskID+": "+e.Message)
			l.mu.Unlock()
		}
	}()
	return l
}

// heard returns how often the listener got this message of a task.
func (l *listener) heard(id, message string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.messages {
		if m == id+": "+message {
			n++
		}
	}
	return n
}

func (l *listener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.messages)
}

// told returns a driver that explains each failure with a message, and sends each exit to the channel calls.
func told(calls chan Ended) testInstance {
	w := testInstance{}
	w.ended = func(e Ended) string {
		calls <- e
		if e.Exit.Code == 0 && e.Exit.Signal == 0 {
			return ""
		}
		return fmt.Sprintf("It said %d/%d", e.Exit.Code, e.Exit.Signal)
	}
	return w
}

func TestReportExit_IsCalledOnceForEveryExit(t *testing.T) {
	calls := make(chan Ended, 10)
	a := startInstance(t, told(calls), nil)
	l := listen(t, a)
	for script, want := range map[string]task.Exit{
		"exit 0":        {},
		"exit 3":        {Code: 3},
		"kill -TERM $$": {Signal: int(unix.SIGTERM)},
		"kill -KILL $$": {Signal: int(unix.SIGKILL)},
	} {
		for _, recovered := range []bool{false, true} {
			name := fmt.Sprintf("%s, recovered %v", script, recovered)
			file := filepath.Join(t.TempDir(), "go")
			cfg := a.shell("while [ ! -e "+file+" ]; do sleep 0.01; done; "+script, "")
			th := wire(t, a.run(cfg))
			if recovered {
				a.restart()
				l = listen(t, a)
				must.NoError(t, a.RecoverTask(th))
			}
			waits, err := a.WaitTask(t.Context(), cfg.ID)
			must.NoError(t, err)
			must.NoError(t, os.WriteFile(file, nil, 0o600))
			await(t, "the exit", waits)
			sentence := fmt.Sprintf("It said %d/%d", want.Code, want.Signal)
			if want != (task.Exit{}) {
				testsupport.Eventually(t, name+": its message is heard", func() bool { return l.heard(cfg.ID, sentence) > 0 })
			}
			if n := l.heard(cfg.ID, sentence); n > 1 || n > 0 && want == (task.Exit{}) {
				t.Errorf("%s: its message was heard %d times", name, n)
			}
			e := await(t, "the call", calls)
			must.SliceEqOp(t, []string{cfg.ID, "web", cfg.AllocDir, "/bin/sh"},
				[]string{e.ID, e.Task, e.AllocDir, e.Command.Path}, must.Sprint(name))
			test.StrHasSuffix(t, script, e.Command.Args[1], test.Sprint(name))
			got := *e.Exit
			got.At = time.Time{}
			test.EqOp(t, want, got, test.Sprint(name))
			a.destroy(cfg.ID)
			test.False(t, len(calls) > 0, test.Sprintf("%s: ReportExit was called again", name))
		}
	}
}

func TestReportExit_GetsTheAllocationDirectory(t *testing.T) {
	calls := make(chan Ended, 10)
	for name, c := range map[string]struct {
		collection, path string // for the path "logmon", the harness starts logmon
	}{
		"the driver collects": {"driver", ""},
		"Nomad collects":      {"nomad", "logmon"},
		"logs are disabled":   {"driver", os.DevNull},
		"disabled for Nomad":  {"nomad", os.DevNull},
	} {
		a := startInstance(t, told(calls), map[string]any{"log_collection": c.collection})
		cfg := a.shell("exit 0", "", func(cfg *drivers.TaskConfig) { cfg.StdoutPath, cfg.StderrPath = c.path, c.path })
		a.run(cfg)
		a.wait(cfg.ID)
		a.destroy(cfg.ID)
		e := await(t, "the call", calls)
		must.Eq(t, cfg.AllocDir, e.AllocDir, must.Sprint(name))
		test.Eq(t, "web", e.Task, test.Sprint(name))
	}
}

func TestReportExit_GetsTheStderrOffsetOfTheRun(t *testing.T) {
	calls := make(chan Ended, 10)
	a := startInstance(t, told(calls), nil)
	cfg := a.shell("echo one >&2", "")
	for _, want := range []task.LogPlace{{}, {Offset: 4}, {Offset: 8}, {File: 7, Offset: 3}} {
		if want.File > 0 { // as if the log had been rotated
			must.NoError(t, os.WriteFile(filepath.Join(cfg.AllocDir, "alloc/logs/web.stderr.7"), []byte("new"), 0o600))
		}
		run := *cfg
		run.ID += fmt.Sprint(want.Offset)
		a.run(&run)
		a.wait(run.ID)
		a.destroy(run.ID)
		e := await(t, "the call", calls)
		test.EqOp(t, want, e.StderrFrom)
	}
}

func TestReportExit_IsCalledAfterTheLastLine(t *testing.T) {
	const tasks = 100
	var mu sync.Mutex
	found := map[string]string{}
	w := testInstance{}
	w.ended = func(e Ended) string {
		b, err := os.ReadFile(filepath.Join(e.AllocDir, "alloc/logs", e.Task+".stderr.0"))
		mu.Lock()
		defer mu.Unlock()
		found[e.ID] = string(b)
		if err != nil {
			found[e.ID] = err.Error()
		}
		return ""
	}
	a := startInstance(t, w, nil)
	var all sync.WaitGroup
	for range tasks {
		cfg := a.shell("echo much of $0 >&2; echo the last >&2; exit 1", "")
		all.Go(func() {
			if _, _, err := a.StartTask(cfg); err != nil {
				t.Error(err)
				return
			}
			a.wait(cfg.ID)
			a.destroy(cfg.ID)
		})
	}
	all.Wait()
	for id, text := range found {
		test.StrHasSuffix(t, "\nthe last\n", text, test.Sprint(id))
	}
	test.MapLen(t, tasks, found, test.Sprintf("asked about %d tasks", len(found)))
}

func TestReportExit_DelaysNoOtherTask(t *testing.T) {
	asked, answer := make(chan string, 10), make(chan struct{})
	w := testInstance{}
	w.ended = func(e Ended) string {
		if e.Exit.Code == 1 {
			asked <- e.ID
			<-answer
		}
		return "said"
	}
	a := startInstance(t, w, nil)
	l := listen(t, a)
	slow, quick := a.shell("exit 1", ""), a.shell("exit 2", "")
	a.run(slow)
	waits, err := a.driver.WaitTask(t.Context(), slow.ID)
	must.NoError(t, err)
	await(t, "the slow one", asked)
	a.run(quick)
	r := a.wait(quick.ID)
	test.Eq(t, 2, r.ExitCode, test.Sprintf("got %+v", r))
	select {
	case r := <-waits:
		t.Errorf("the exit came before the driver had explained it: %+v", r)
	default:
	}
	close(answer)
	r = await(t, "the exit", waits)
	test.Eq(t, 1, r.ExitCode, test.Sprintf("got %+v", r))
	testsupport.Eventually(t, "its message is heard", func() bool { return l.heard(slow.ID, "said") == 1 })
	a.destroy(slow.ID)
	a.destroy(quick.ID)
}

func TestStartCall_StartsNothingForAnExitedAgent(t *testing.T) {
	for name, ignore := range map[string]bool{"a command that gives up": false, "a command that goes on": true} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{})
			var dir string
			a := startInstance(t, before(func(ctx context.Context, r testRequest) error {
				dir = r.StateDir()
				close(begun)
				<-ctx.Done()
				if ignore {
					return nil
				}
				return ctx.Err()
			}), nil)
			m := testsupport.Mark()
			cfg := a.shell("exec sleep "+m, "")
			call, gone := context.WithCancel(t.Context())
			done := a.driver.StartCall(call, cfg.ID)
			started := make(chan error, 1)
			go func() {
				_, _, err := a.driver.StartTask(cfg)
				started <- err
			}()
			await(t, "the command", begun)
			gone()
			test.ErrorIs(t, await(t, "the end of the start", started), context.Canceled)
			done()
			left, there := testsupport.Sleepers(m), testsupport.Exists(dir)
			if len(left) > 0 || there || len(a.driver.handles) > 0 || len(a.driver.calls) > 0 {
				t.Errorf("processes %v, state %v, handles %v, calls %v", left, there, a.driver.handles,
					a.driver.calls)
			}
		})
	}
}

func TestStartCall_CancelsOnlyTheStartOfItsTask(t *testing.T) {
	a := startInstance(t, before(func(ctx context.Context, _ testRequest) error { return ctx.Err() }), nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	mine, other := a.shell("exit 0", ""), a.shell("exit 0", "")
	done := a.driver.StartCall(gone, other.ID)
	_, r := a.result(mine)
	test.Eq(t, 0, r.ExitCode, test.Sprintf("got %+v", r))
	_, _, err := a.driver.StartTask(other)
	test.ErrorIs(t, err, context.Canceled)
	done()
	a.result(other) // the same task can be started again
}

func TestStartTask_KeepsRecoverableErrors(t *testing.T) {
	for err, want := range map[error]bool{
		structs.NewRecoverableError(errors.New("index does not answer"), true):                                     true,
		structs.NewRecoverableError(errors.New("index has no such"), false):                                        false,
		structs.WrapRecoverable("build failed: timeout", structs.NewRecoverableError(errors.New("timeout"), true)): true,
		errors.New("no such package"): false,
	} {
		a := startInstance(t, before(func(context.Context, testRequest) error { return err }), nil)
		_, _, got := a.StartTask(a.shell("exit 0", ""))
		if got == nil || structs.IsRecoverable(got) != want || !strings.Contains(got.Error(), err.Error()) {
			t.Errorf("%v: got %v, recoverable %v", err, got, structs.IsRecoverable(got))
		}
	}
}

// Nomad takes the events of all tasks one by one, and writes each to its disk.
func TestWaitTask_DeliversExitsAfterTheirEvents(t *testing.T) {
	w := before(func(_ context.Context, r testRequest) error { r.Event("Beginning"); return nil })
	w.ended = func(Ended) string { return "The reason" }
	a := startInstance(t, w, nil)
	events, err := a.TaskEvents(t.Context())
	must.NoError(t, err)
	testsupport.Eventually(t, "the driver has registered the listener", a.driver.hasListeners)
	const tasks = 20
	var mu sync.Mutex
	told, exited := map[string][]time.Time{}, map[string]time.Time{}
	go func() { // ends with the test's context
		for e := range events {
			mu.Lock()
			told[e.TaskID] = append(told[e.TaskID], e.Timestamp)
			mu.Unlock()
		}
	}()
	var all sync.WaitGroup
	for range tasks {
		cfg := a.shell("exit 1", "")
		all.Go(func() {
			if _, _, err := a.StartTask(cfg); err != nil {
				t.Error(err)
				return
			}
			ch, err := a.WaitTask(t.Context(), cfg.ID)
			if err != nil {
				t.Error(err)
				return
			}
			<-ch
			mu.Lock()
			exited[cfg.ID] = time.Now()
			mu.Unlock()
			a.destroy(cfg.ID)
		})
	}
	all.Wait()
	testsupport.Eventually(t, "all events are heard", func() bool {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, times := range told {
			n += len(times)
		}
		return n == 2*tasks
	})
	mu.Lock()
	defer mu.Unlock()
	var reasons, exits []time.Time
	for id, times := range told {
		waited := exited[id].Sub(times[1])
		test.False(t, waited < deliveryTime, test.Sprintf("an exit came %v after its event", waited))
		reasons, exits = append(reasons, times[1]), append(exits, exited[id])
	}
	// check only a lower bound, because a busy machine is slower
	first, last := slices.MinFunc(reasons, time.Time.Compare), slices.MaxFunc(exits, time.Time.Compare)
	waited := last.Sub(first)
	test.False(t, waited < deliveryTime+(tasks-1)*queuedTime,
		test.Sprintf("the last exit came %v after the first event of an end", waited))
}
