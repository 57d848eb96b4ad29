// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestStopTask_WaitsForTheWholeProcessTree(t *testing.T) {
	a := start(t, nil)
	for mode, session := range map[string]string{"group": "sh", "all": "setsid sh"} {
		file := filepath.Join(t.TempDir(), "done")
		rest := fmt.Sprintf("trap 'sleep 1; echo x > %s; exit' TERM; echo r; while :; do sleep 0.02; done", file)
		cfg := a.shell(`trap 'exit 6' TERM; `+session+` -c "`+rest+`" & while :; do sleep 0.02; done`,
			`kill_mode = "`+mode+`"`)
		a.run(cfg)
		testsupport.Eventually(t, "both are ready", func() bool { return strings.Contains(a.output(cfg), "r\n") })
		must.NoError(t, a.StopTask(cfg.ID, time.Minute, "SIGTERM"))
		if _, err := os.Stat(file); err != nil {
			must.Eq(t, "", a.share, must.Sprintf("%s: it was killed while it ended: %v", mode, err))
			test.Eq(t, "all", mode, test.Sprintf("%s: it was killed while it ended: %v", mode, err))
		}
		r := a.wait(cfg.ID)
		test.Eq(t, 6, r.ExitCode, test.Sprintf("%s: got %+v", mode, r))
		a.destroy(cfg.ID)
	}
}

func TestStopTask_WaitsOnlyForSignalledProcesses(t *testing.T) {
	a := start(t, nil)
	for mode, rest := range map[string]string{"process": "sh", "group": "setsid -f sh"} {
		m := testsupport.Mark()
		cfg := a.shell(rest+" -c 'exec sleep "+m+"' & trap 'exit 6' TERM; echo r; while :; do sleep 0.02; done",
			`kill_mode = "`+mode+`"`)
		a.run(cfg)
		testsupport.Eventually(t, "the task is ready", func() bool { return a.output(cfg) == "r\n" })
		testsupport.WaitSleepers(t, m, 1)
		began := time.Now()
		must.NoError(t, a.StopTask(cfg.ID, 10*time.Minute, "SIGTERM"))
		took := time.Since(began)
		test.False(t, took > 5*time.Minute, test.Sprintf("%s: took %v", mode, took))
		test.SliceEmpty(t, testsupport.Sleepers(m), test.Sprintf("%s: left behind", mode))
		a.destroy(cfg.ID)
	}
}

func TestStopTask_DoesNotWaitForAPreStopThatHangs(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	cfg := a.shell("trap 'exit 6' TERM; echo r; while :; do sleep 0.02; done",
		fmt.Sprintf("pre_stop = [%q]", testsupport.HungDir(t)+"/program"))
	a.run(cfg)
	testsupport.Eventually(t, "the task is ready", func() bool { return a.output(cfg) == "r\n" })
	began := time.Now()
	must.NoError(t, a.StopTask(cfg.ID, time.Second, "SIGTERM"))
	test.Less(t, 30*time.Second, time.Since(began))
	test.ErrorContains(t, a.wait(cfg.ID).Err, "pre_stop did not end within kill_timeout")
	a.destroy(cfg.ID)
}

// StopTask returns as soon as the task has ended. Nomad's driver exec2, in contrast, checks for the end every 500 ms.
func TestStopTask_ReturnsWhenTheTaskEnds(t *testing.T) {
	a := start(t, nil)
	testsupport.Eventually(t, "a stop takes less than 0.2 seconds", func() bool {
		cfg := a.shell("echo r; exec sleep 1000", "")
		a.run(cfg)
		testsupport.Eventually(t, "the task is ready", func() bool { return a.output(cfg) == "r\n" })
		began := time.Now()
		must.NoError(t, a.StopTask(cfg.ID, time.Minute, "SIGTERM"))
		took := time.Since(began)
		a.destroy(cfg.ID)
		return took < 200*time.Millisecond
	})
}

func TestStopTask_DoesNotWaitForTheInitOfAPIDNamespace(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	if a.share == "" {
		t.Skip("tasks have no cgroup")
	}
	cfg := a.shell("trap 'exit 6' TERM; echo r; while :; do sleep 0.02; done", "kill_mode = \"all\"\nisolate = [\"pid\"]")
	a.run(cfg)
	testsupport.Eventually(t, "the task is ready", func() bool { return a.output(cfg) == "r\n" })
	began := time.Now()
	must.NoError(t, a.StopTask(cfg.ID, 90*time.Second, "SIGTERM"))
	test.Less(t, time.Minute, time.Since(began))
	test.Eq(t, 6, a.wait(cfg.ID).ExitCode)
	a.destroy(cfg.ID)
}

func TestStopTask_RunsPreStopBeforeTheSignal(t *testing.T) {
	a := start(t, nil)
	for script, row := range map[string]struct {
		timeout time.Duration
		told    string
	}{
		"echo pre >>order":            {time.Minute, ""},
		"echo pre >>order; exit 3":    {time.Minute, "pre_stop failed: code 3"},
		"echo pre >>order; sleep 600": {2 * time.Second, "pre_stop did not end within kill_timeout"},
	} {
		cfg := a.shell("trap 'echo signal >>order; exit 6' TERM; echo r; while :; do sleep 0.02; done",
			fmt.Sprintf(`pre_stop = ["/bin/sh", "-c", %q]`, script))
		th := a.run(cfg)
		testsupport.Eventually(t, "the task is ready", func() bool { return a.output(cfg) == "r\n" })
		a.restart()
		must.NoError(t, a.RecoverTask(wire(t, th)))
		must.NoError(t, a.StopTask(cfg.ID, row.timeout, "SIGTERM"))
		if row.told != "" {
			test.ErrorContains(t, a.wait(cfg.ID).Err, row.told)
		}
		if row.timeout == time.Minute {
			order, err := os.ReadFile(cfg.TaskDir().Dir + "/order")
			must.NoError(t, err)
			test.Eq(t, "pre\nsignal\n", string(order), test.Sprint(script))
		}
		a.destroy(cfg.ID)
	}
}

func TestStopTask_PutsEventsIntoTheExitMessage(t *testing.T) {
	calls := make(chan Ended, 10)
	a := startInstance(t, told(calls), nil)
	l := listen(t, a)
	const loop = "while :; do sleep 0.02; done"
	for name, row := range map[string]struct {
		script, options string
		timeout         time.Duration
		code            int
		message         string
	}{
		"ends by the signal": {"echo r; exec sleep 1000", "", time.Minute, 130, "It said 0/2"},
		"ends well":          {"trap 'exit 0' INT; echo r; " + loop, "", time.Minute, 0, ""},
		"fails":              {"trap 'exit 3' INT; echo r; " + loop, "", time.Minute, 3, "It said 3/0"},
		"ignores it": {"trap '' INT; echo r; " + loop, "", 200 * time.Millisecond, 137,
			"It said 0/9; kill_timeout of 200ms passed: the task was killed"},
		"child ignores it": {"trap 'exit 4' INT; (trap '' INT; echo r; " + loop + ") & wait",
			`kill_mode = "group"`, 3 * time.Second, 4, // long enough for the main process to end on a busy machine
			"It said 4/0; kill_timeout of 3s passed: the remaining processes of the task were killed"},
	} {
		cfg := a.shell(row.script, row.options)
		a.run(cfg)
		waits, err := a.WaitTask(t.Context(), cfg.ID)
		must.NoError(t, err)
		testsupport.Eventually(t, "it is ready", func() bool { return a.output(cfg) == "r\n" })
		h, err := a.driver.handle(cfg.ID)
		must.NoError(t, err)
		h.delivered(time.Now().Add(time.Hour)) // as if Nomad took the task's events only after an hour
		must.NoError(t, a.StopTask(cfg.ID, row.timeout, "SIGINT"))
		r := await(t, name+": the exit, which nothing holds back", waits)
		var messages []string
		if r.Err != nil {
			messages = strings.Split(r.Err.Error(), "; ")
			slices.Sort(messages)
		}
		must.Eq(t, row.code, r.ExitCode, must.Sprintf("%s: got %d, %q", name, r.ExitCode, messages))
		test.Eq(t, row.message, strings.Join(messages, "; "),
			test.Sprintf("%s: got %d, %q", name, r.ExitCode, messages))
		a.destroy(cfg.ID)
	}
	// events keep their order: once this task's event has arrived, all earlier events have arrived too
	last := a.shell("exit 5", "")
	a.result(last)
	testsupport.Eventually(t, "a later event is heard", func() bool { return l.heard(last.ID, "It said 5/0") == 1 })
	test.Eq(t, 1, l.count(), test.Sprintf("unexpected events: %q", l.messages))
}

func TestParseSignal_AcceptsNamesAndNumbers(t *testing.T) {
	for name, want := range map[string]int{
		"SIGHUP": 1, "hup": 1, " Term ": 15, "sigkill": 9, "USR1": 10, "SIGIOT": 6, "SIGCLD": 17, "SIGPOLL": 29,
		"9": 9, "34": 34, "64": 64, "RTMIN": 34, "SIGRTMIN+3": 37, "SIGRTMAX": 64, "rtmax-1": 63,
		"SIGSIG": 0, "": 0, "SIG": 0, "0": 0, "65": 0, "-1": 0, "9+1": 0, "SIGRTMIN-1": 0, "SIGRTMAX+1": 0,
		"RTMIN+": 0, "RTMIN+x": 0, "HUP+1": 0, "RTMINRTMAX": 0,
	} {
		sig, err := task.ParseSignal(name)
		must.Eq(t, want, int(sig), must.Sprintf("%q: got %d, %v", name, sig, err))
		test.Eq(t, (want != 0), (err == nil), test.Sprintf("%q: got %d, %v", name, sig, err))
	}
}
