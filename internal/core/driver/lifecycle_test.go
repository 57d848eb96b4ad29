// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestLifecycle_ReportsExitCodes(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		for _, code := range []int{0, 7} {
			cfg := a.program("exit", strconv.Itoa(code))
			_, r := a.result(cfg)
			test.EqOp(t, (drivers.ExitResult{ExitCode: code}), *r, test.Sprintf("%d: got %+v", code, r))
		}
	})
}

func TestWaitTask_ReportsSignals(t *testing.T) {
	a := start(t, nil)
	for script, want := range map[string]drivers.ExitResult{
		"kill -TERM $$": {ExitCode: 143, Signal: 15},
		"kill -KILL $$": {ExitCode: 137, Signal: 9},
	} {
		_, r := a.result(a.shell(script, ""))
		test.EqOp(t, want, *r, test.Sprintf("%s: got %+v", script, r))
	}
}

func TestLifecycle_DeliversTheExitToEveryWaiter(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		for range 5 {
			file := filepath.Join(t.TempDir(), "go")
			cfg := a.program("until", file, "5")
			a.run(cfg)
			var all sync.WaitGroup
			for range 20 {
				ch, err := a.driver.WaitTask(t.Context(), cfg.ID) // directly: over gRPC, a call may arrive after DestroyTask
				must.NoError(t, err)
				all.Go(func() {
					r := await(t, "the exit", ch)
					must.Eq(t, 5, r.ExitCode, must.Sprintf("got %+v", r))
					test.NoError(t, r.Err, test.Sprintf("got %+v", r))
					_ = a.DestroyTask(cfg.ID, false) // other goroutines may still wait for the exit
				})
			}
			must.NoError(t, os.WriteFile(file, nil, 0o600))
			all.Wait()
			a.destroy(cfg.ID)
		}
	})
}

func TestLifecycle_WaitEndsWithItsContext(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		cfg := a.program("sleep", "0")
		a.run(cfg)
		ctx, cancel := context.WithCancel(context.Background())
		ch, err := a.driver.WaitTask(ctx, cfg.ID)
		must.NoError(t, err)
		cancel()
		select {
		case r := <-ch:
			if r == nil || !errors.Is(r.Err, context.Canceled) {
				t.Errorf("got %+v", r)
			}
		case <-time.After(time.Minute):
			t.Error("still waiting")
		}
		s, err := a.InspectTask(cfg.ID)
		must.NoError(t, err, must.Sprintf("the task: %+v", s))
		test.Eq(t, drivers.TaskStateRunning, s.State, test.Sprintf("the task: %+v", s))
		a.destroy(cfg.ID)
	})
}

func TestLifecycle_RefusesUnknownTasks(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		ctx := context.Background()
		for name, call := range map[string]func() error{
			"wait":    func() error { _, err := a.driver.WaitTask(ctx, "x"); return err },
			"inspect": func() error { _, err := a.driver.InspectTask("x"); return err },
			"stats":   func() error { _, err := a.driver.TaskStats(ctx, "x", time.Second); return err },
			"signal":  func() error { return a.driver.SignalTask("x", "SIGHUP") },
			"exec":    func() error { _, err := a.driver.ExecTask("x", []string{"true"}, time.Second); return err },
			"stream":  func() error { return a.driver.ExecTaskStreamingRaw(ctx, "x", []string{"true"}, false, nil) },
		} {
			test.ErrorIs(t, call(), drivers.ErrTaskNotFound, test.Sprint(name))
		}
		// Nomad would retry for minutes after an error
		test.NoError(t, a.StopTask("x", time.Second, "SIGTERM"), test.Sprint("stop"))
		test.NoError(t, a.DestroyTask("x", true), test.Sprint("destroy"))
	})
}

func TestStopTask_KillsAtTheTimeout(t *testing.T) {
	a := start(t, nil)
	const never, soon = time.Minute, 30 * time.Second // 30 s is enough for a stop on a busy machine
	const loop = "while :; do sleep 0.02; done"
	for name, c := range map[string]struct {
		script, signal, options string
		timeout, least          time.Duration
		code                    int
	}{
		"default signal is SIGINT": {"trap 'exit 3' INT; echo r; " + loop, "", "", never, 0, 3},
		"the job's signal":         {"trap 'exit 4' USR2; echo r; " + loop, "SIGUSR2", "", never, 0, 4},
		"ignored signal": {"trap '' TERM; echo r; " + loop, "SIGTERM", "", 300 * time.Millisecond,
			300 * time.Millisecond, 137},
		"zero timeout":    {"trap '' TERM; echo r; " + loop, "SIGTERM", "", 0, 0, 137},
		"unknown signal":  {"trap 'exit 3' INT; echo r; " + loop, "SIGWHAT", "", never, 0, 3},
		"stopped process": {"trap 'exit 5' TERM; echo r; kill -STOP $$; " + loop, "SIGTERM", "", never, 0, 5},
		"whole group": {"trap 'wait; exit 6' TERM; (trap 'sleep 0.2; exit' TERM; echo r; " + loop + ") & wait",
			"SIGTERM", `kill_mode = "group"`, never, 0, 6},
	} {
		m := testsupport.Mark()
		cfg := a.shell(a.background(m)+c.script, c.options)
		a.run(cfg)
		testsupport.Eventually(t, name+" is ready", func() bool { return strings.Contains(a.output(cfg), "r") })
		testsupport.WaitSleepers(t, m, 1)
		if name == "stopped process" {
			testsupport.Eventually(t, "it is stopped", func() bool { return a.stopped(cfg.ID) })
		}
		began := time.Now()
		must.NoError(t, a.StopTask(cfg.ID, c.timeout, c.signal))
		took := time.Since(began)
		must.False(t, took < c.least, must.Sprintf("%s: took %v", name, took))
		test.False(t, took > soon, test.Sprintf("%s: took %v", name, took))
		r := a.wait(cfg.ID)
		test.Eq(t, c.code, r.ExitCode, test.Sprintf("%s: got %+v", name, r))
		testsupport.WaitSleepers(t, m, 0)
		test.NoError(t, a.StopTask(cfg.ID, time.Second, ""), test.Sprintf("%s: again", name))
		a.destroy(cfg.ID)
	}
}

func TestLifecycle_DestroysARunningTaskOnlyByForce(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		cfg := a.program("deaf", "0")
		a.run(cfg)
		test.ErrorContains(t, a.DestroyTask(cfg.ID, false), "still running")
		a.destroy(cfg.ID)
		_, err := a.InspectTask(cfg.ID)
		test.Error(t, err, test.Sprint("it is known after destroy"))
	})
}

func TestLifecycle_RecoversTheSameTask(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		file := filepath.Join(t.TempDir(), "go")
		cfg := a.program("until", file, "9")
		th := wire(t, a.run(cfg))
		before, err := a.InspectTask(cfg.ID)
		must.NoError(t, err)
		a.restart()
		must.NoError(t, a.RecoverTask(th))
		must.NoError(t, a.RecoverTask(th)) // the task is known already
		after, err := a.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, before.State, after.State, must.Sprintf("before %+v, after %+v", before, after))
		must.True(t, after.StartedAt.Equal(before.StartedAt),
			must.Sprintf("before %+v, after %+v", before, after))
		test.Eq(t, before.DriverAttributes["pid"], after.DriverAttributes["pid"],
			test.Sprintf("before %+v, after %+v", before, after))
		must.NoError(t, os.WriteFile(file, nil, 0o600))
		r := a.wait(cfg.ID)
		must.Eq(t, 9, r.ExitCode, must.Sprintf("got %+v", r))
		test.NoError(t, r.Err, test.Sprintf("got %+v", r))
		a.destroy(cfg.ID)
	})
}

func TestRecoverTask_ReportsAnExitThatPrecededTheRecovery(t *testing.T) {
	a := start(t, nil)
	file := filepath.Join(t.TempDir(), "go")
	cfg := a.shell("while [ ! -e "+file+" ]; do sleep 0.01; done; kill -USR1 $$", "")
	th := wire(t, a.run(cfg))
	pid := a.pid(cfg.ID)
	a.stopDriver()
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	testsupport.Eventually(t, "it has ended", func() bool {
		st, err := task.ReadStat(pid)
		return err != nil || st.Zombie
	})
	a.startDriver(nil)
	must.NoError(t, a.RecoverTask(th))
	r := a.wait(cfg.ID)
	must.Eq(t, int(unix.SIGUSR1), r.Signal, must.Sprintf("got %+v", r))
	test.NoError(t, r.Err, test.Sprintf("got %+v", r))
	a.destroy(cfg.ID)
}

func TestDestroyTask_KillsATaskKnownOnlyFromDisk(t *testing.T) {
	a := start(t, nil)
	m := testsupport.Mark()
	cfg := a.shell(a.background(m)+"exec sleep "+m, "")
	a.run(cfg)
	testsupport.WaitSleepers(t, m, 2)
	a.restart()
	a.destroy(cfg.ID)
	testsupport.WaitSleepers(t, m, 0)
	a.destroy(cfg.ID)
}

// RecoverTask forgets the task if it fails to record the claim. The next RecoverTask must still find the exit.
func TestRecoverTask_KeepsTheExitAfterAFailedAttempt(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("exit 7", "")
	th := wire(t, a.run(cfg))
	test.Eq(t, 7, a.wait(cfg.ID).ExitCode)
	a.driver.forget(cfg.ID)
	must.NoError(t, a.RecoverTask(th))
	test.Eq(t, 7, a.wait(cfg.ID).ExitCode)
	a.destroy(cfg.ID)
}

func TestRecoverTask_RefusesABadHandle(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("exec sleep 1000", "")
	th := a.run(cfg)
	good := wire(t, th)
	a.restart()
	for name, change := range map[string]func(*drivers.TaskHandle){
		"empty":   func(h *drivers.TaskHandle) { h.DriverState = nil },
		"garbage": func(h *drivers.TaskHandle) { h.DriverState = []byte("garbage") },
		"another": func(h *drivers.TaskHandle) { h.Config.ID = "another/task/id" },
	} {
		bad := wire(t, good)
		change(bad)
		if err := a.RecoverTask(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	must.NoError(t, a.RecoverTask(good))
	a.destroy(cfg.ID)
}

func TestSignalTask_SignalsTheMainProcess(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("trap 'echo hup' HUP; trap 'exit 2' TERM; echo r; while :; do sleep 0.02; done", "")
	a.run(cfg)
	testsupport.Eventually(t, "it is ready", func() bool { return a.output(cfg) == "r\n" })
	must.NoError(t, a.SignalTask(cfg.ID, "SIGHUP"))
	testsupport.Eventually(t, "it got the signal", func() bool { return strings.Contains(a.output(cfg), "hup") })
	test.ErrorContains(t, a.SignalTask(cfg.ID, "SIGNONSENSE"), "SIGNONSENSE")
	must.NoError(t, a.SignalTask(cfg.ID, "term"))
	r := a.wait(cfg.ID)
	test.Eq(t, 2, r.ExitCode, test.Sprintf("got %+v", r))
	a.destroy(cfg.ID)
}

func TestExecTask_RunsACommand(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("exec sleep 1000", "", func(c *drivers.TaskConfig) { c.Env["COLOUR"] = "blue" })
	a.run(cfg)
	defer a.destroy(cfg.ID)
	testutils.ExecTaskStreamingConformanceTests(t, a.DriverHarness, cfg.ID)

	r, err := a.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "echo out $COLOUR; echo err >&2; exit 3"}, time.Minute)
	must.NoError(t, err, must.Sprintf("got %+v", r))
	must.Eq(t, "out blue\nerr\n", string(r.Stdout), must.Sprintf("got %+v", r))
	test.Eq(t, 3, r.ExitResult.ExitCode, test.Sprintf("got %+v", r))
	r, err = a.ExecTask(cfg.ID, []string{"/bin/sh", "-c", "seq 1 20000"}, time.Minute)
	if err != nil || len(r.Stdout) != drivers.CheckBufSize || !strings.HasSuffix(string(r.Stdout), "\n20000\n") {
		t.Errorf("much output: %d bytes, %v", len(r.Stdout), err)
	}
	m := testsupport.Mark()
	if _, err = a.ExecTask(cfg.ID, []string{"sleep", m}, 100*time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "did not end within") {
		t.Errorf("timeout: got %v", err)
	}
	testsupport.WaitSleepers(t, m, 0)
	for _, cmd := range [][]string{nil, {""}, {"/no/such/program"}} {
		if _, err := a.driver.ExecTask(cfg.ID, cmd, time.Minute); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v", cmd, err)
		}
	}
	test.Nil(t, a.driver.handles[cfg.ID].task.Exit(), test.Sprint("the task ended"))
}

func TestExecTask_EndsAtItsTimeoutWhenTheStartHangs(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	cfg := a.shell("exec sleep 1000", "")
	a.run(cfg)
	defer a.destroy(cfg.ID)
	began := time.Now()
	_, err := a.ExecTask(cfg.ID, []string{testsupport.HungDir(t) + "/program"}, time.Second)
	test.ErrorContains(t, err, "did not end within 1s")
	test.Less(t, 30*time.Second, time.Since(began))
}

func TestLifecycle_StopSignalsThenKillsAtTheTimeout(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		for _, c := range []struct {
			program []string
			signal  string
			timeout time.Duration
			code    int
		}{
			{[]string{"sleep", "3"}, "SIGINT", time.Minute, 3},
			{[]string{"trap", "USR2", "4"}, "SIGUSR2", time.Minute, 4},
			{[]string{"deaf", "0"}, "SIGINT", 300 * time.Millisecond, 137},
		} {
			cfg := a.program(c.program[0], c.program[1:]...)
			a.run(cfg)
			a.ready(cfg)
			began := time.Now()
			must.NoError(t, a.StopTask(cfg.ID, c.timeout, c.signal))
			if took := time.Since(began); c.code == 137 && took < c.timeout || took > 30*time.Second {
				t.Errorf("%s: took %v", c.program, took)
			}
			r := a.wait(cfg.ID)
			test.Eq(t, c.code, r.ExitCode, test.Sprintf("%s: got %+v", c.program, r))
			a.destroy(cfg.ID)
		}
	})
}

func TestLifecycle_PassesOnSignals(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		cfg := a.program("trap", "HUP", "2")
		a.run(cfg)
		a.ready(cfg)
		must.NoError(t, a.SignalTask(cfg.ID, "SIGHUP"))
		r := a.wait(cfg.ID)
		test.Eq(t, 2, r.ExitCode, test.Sprintf("got %+v", r))
		a.destroy(cfg.ID)
	})
}

// The engine of the example supports neither statistics nor commands in tasks.
func TestLifecycle_EndsStatisticsWithTheTask(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		cfg := a.program("sleep", "0")
		a.run(cfg)
		usages, err := a.driver.TaskStats(t.Context(), cfg.ID, 10*time.Millisecond)
		must.NoError(t, err)
		if _, err = a.driver.ExecTask(cfg.ID, []string{"true"}, time.Minute); (err == nil) != (a.instance.engine == nil) {
			t.Errorf("exec: got %v", err)
		}
		must.NoError(t, a.StopTask(cfg.ID, 0, ""))
		samples := 0
		for range usages {
			samples++
		}
		if a.instance.engine != nil && samples > 0 {
			t.Errorf("%d samples", samples)
		}
		a.destroy(cfg.ID)
	})
}

func TestLifecycle_DestroysATaskOfAnEarlierPluginProcess(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		cfg := a.program("deaf", "0")
		a.run(cfg)
		a.restart()
		a.destroy(cfg.ID)
		a.destroy(cfg.ID)
	})
}

func TestTaskStats_AreComplete(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("while :; do :; done & wait", "")
	a.run(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ch, err := a.TaskStats(ctx, cfg.ID, 100*time.Millisecond)
	must.NoError(t, err)
	// on a busy machine, a reading may show no usage
	var cpu *drivers.CpuStats
	var mem *drivers.MemoryStats
	for end := time.After(time.Minute); cpu == nil || cpu.Percent <= 0 || cpu.TotalTicks <= 0 || mem.RSS == 0 &&
		mem.Usage == 0; {
		select {
		case u := <-ch:
			cpu, mem = u.ResourceUsage.CpuStats, u.ResourceUsage.MemoryStats
		case <-end:
			t.Fatalf("cpu %+v, memory %+v", cpu, mem)
		}
	}
	must.NoError(t, a.StopTask(cfg.ID, 0, ""))
	testsupport.Eventually(t, "the channel is closed", func() bool {
		select {
		case _, ok := <-ch:
			return !ok
		default:
			return false
		}
	})
	a.destroy(cfg.ID)
}

func TestLifecycle_KeepsEventsPendingUntilNomadWaits(t *testing.T) {
	eachEngine(t, func(t *testing.T, a *agent) {
		cfg := a.program("sleep", "0")
		th := wire(t, a.run(cfg))
		a.restart()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		events, err := a.TaskEvents(ctx)
		must.NoError(t, err)
		must.NoError(t, a.RecoverTask(th))
		select {
		case e := <-events:
			t.Fatalf("event before WaitTask: %+v", e)
		case <-time.After(100 * time.Millisecond):
		}
		_, err = a.WaitTask(ctx, cfg.ID)
		must.NoError(t, err)
		next := func() *drivers.TaskEvent {
			select {
			case e := <-events:
				return e
			case <-time.After(time.Minute):
				t.Fatal("no event")
				return nil
			}
		}
		e := next()
		must.StrHasPrefix(t, "Re-attached", e.Message, must.Sprintf("got %+v", e))
		must.Eq(t, cfg.ID, e.TaskID, must.Sprintf("got %+v", e))
		must.Eq(t, cfg.AllocID, e.AllocID, must.Sprintf("got %+v", e))
		must.Eq(t, "web", e.TaskName, must.Sprintf("got %+v", e))
		test.False(t, e.Timestamp.IsZero(), test.Sprintf("got %+v", e))
		a.destroy(cfg.ID)
	})
}

// Parts of a message may come from a task, so they must not control a terminal.
func TestEvents_ArePrintable(t *testing.T) {
	e := taskEvent(&drivers.TaskConfig{ID: "id"}, "Failed: \x1b[2Jtext\a")
	test.Eq(t, "Failed:  [2Jtext ", e.Message)
	ended := &localTask{}
	ended.End(&task.Exit{Lost: true, Reason: "a\rb"})
	h := &handle{task: ended, exitMessage: []string{"\x1b]0;title\a"}}
	test.EqError(t, h.exitWithMessage().Err, "task is lost: a b;  ]0;title ")
}

func TestOOM_IsReportedWithTheLimit(t *testing.T) {
	calls := make(chan Ended, 1)
	a := startInstance(t, told(calls), nil)
	if a.share == "" {
		t.Skip("no memory cgroup can be used: " + a.cgroup.Missing)
	}
	events := listen(t, a)
	cfg := a.shell("head -c 200M /dev/zero | tail", "", func(c *drivers.TaskConfig) {
		c.Resources.NomadResources.Memory.MemoryMB = 30
	})
	a.run(cfg)
	r := a.wait(cfg.ID)
	must.True(t, r.OOMKilled, must.Sprintf("got %+v", r))
	test.NotEq(t, 0, r.ExitCode, test.Sprintf("got %+v", r))
	e := await(t, "the call of ReportExit", calls)
	test.True(t, e.Exit.OOMKilled, test.Sprintf("got %+v", e.Exit))
	testsupport.Eventually(t, "the event", func() bool {
		return events.heard(cfg.ID, "OOM: killed at 30 MiB of memory") == 1
	})
	a.destroy(cfg.ID)
}

func TestLimits_ReachTheMemoryCgroup(t *testing.T) {
	a := start(t, nil)
	if a.share == "" {
		t.Skip("no memory cgroup can be used: " + a.cgroup.Missing)
	}
	for name, c := range map[string]struct {
		memory, max int64
		soft, hard  string
	}{
		"hard alone":    {64, 0, "", "67108864"},
		"a pair":        {64, 128, "67108864", "134217728"},
		"no hard limit": {64, -1, "67108864", "9223372036854771712"},
	} {
		cfg := a.shell("exec sleep 1000", "", func(t *drivers.TaskConfig) {
			t.Resources.NomadResources.Memory.MemoryMB, t.Resources.NomadResources.Memory.MemoryMaxMB = c.memory, c.max
		})
		a.run(cfg)
		dir := filepath.Join(a.cgroup.Mounts["memory"], filepath.Base(filepath.Dir(a.share)), cfg.AllocID+".web")
		read := func(file string) string {
			if a.cgroup.Mode == cgroup.V2 {
				dir = cfg.Resources.LinuxResources.CpusetCgroupPath
				file = map[string]string{"memory.limit_in_bytes": "memory.max", "memory.soft_limit_in_bytes": "memory.low"}[file]
			}
			b, err := os.ReadFile(filepath.Join(dir, file))
			must.NoError(t, err)
			return strings.TrimSpace(string(b))
		}
		if got := read("memory.limit_in_bytes"); got != c.hard && !(got == "max" && c.max == -1) {
			t.Errorf("%s: hard limit %s, want %s", name, got, c.hard)
		}
		if got := read("memory.soft_limit_in_bytes"); c.soft != "" && got != c.soft {
			t.Errorf("%s: soft limit %s, want %s", name, got, c.soft)
		}
		a.destroy(cfg.ID)
	}
}
