// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// fault is a row: something breaks while tasks start, run, end and are stopped, and is put right after a while.
type fault struct {
	name   string
	strike func(x *table, t *testing.T) (heal func())
	lasts  time.Duration

	// unseen: nobody is left to see an end meanwhile, so "lost" is a true answer, too.
	unseen bool

	// ends: with it ends what runs on the host.
	ends bool

	// moves: the fault lasts until the node is lost, so that another one has its tasks.
	moves bool

	// refuses is why a task may fail to start, empty if it may not.
	refuses string

	// deaf: Nomad fails an allocation for good that it takes while it has not noticed that the plugin ended.
	deaf bool

	// between is a fault of what lies between Nomad and the host, also for tasks in an engine there.
	between bool
}

var faults = []fault{
	{name: "plugin killed", between: true, deaf: true, strike: func(x *table, t *testing.T) func() {
		killed(t, x.plugin(t))
		return func() {}
	}},
	{name: "agent killed", lasts: time.Second, between: true, strike: killAgent},
	{name: "agent killed until its node is lost", lasts: 12 * time.Second, moves: true, between: true, strike: killAgent},
	{name: "shim killed", strike: func(x *table, t *testing.T) func() {
		killed(t, x.onHost("outrider-shim")...)
		return func() {}
	}},
	{name: "supervisor killed", strike: func(x *table, t *testing.T) func() {
		killed(t, x.onHost("outrider-supervisor")...)
		return func() {}
	}},
	{name: "shim and supervisor killed", lasts: time.Second, unseen: true, strike: func(x *table, t *testing.T) func() {
		killed(t, append(x.onHost("outrider-shim"), x.onHost("outrider-supervisor")...)...)
		return func() {
			testsupport.Eventually(t, "others run", func() bool { return len(x.onHost("outrider-supervisor")) > 0 })
			time.Sleep(time.Second) // it finds the tasks
		}
	}},
	{name: "sshd killed", lasts: time.Second, between: true, strike: commands("kill", "start")},
	{name: "link down for less than the lease", lasts: 3 * time.Second, between: true, strike: commands("down", "up")},
	{name: "link down for more than the lease", lasts: 14 * time.Second, between: true, strike: commands("down", "up")},
	{name: "host restarted", lasts: time.Second, unseen: true, ends: true, strike: commands("halt", "boot")},
	{name: "disk full on the host", lasts: 3 * time.Second, refuses: "no space left on device",
		strike: func(x *table, t *testing.T) func() { return fill(t, x.state) }},
	{name: "half an upload", lasts: time.Second, strike: halfUpload},
}

// commands has the host do one thing, and another to put it right.
func commands(strike, heal string) func(*table, *testing.T) func() {
	return func(x *table, t *testing.T) func() {
		must.NoError(t, x.box.Do(strike))
		return func() { must.NoError(t, x.box.Do(heal)) }
	}
}

func killAgent(x *table, t *testing.T) func() {
	must.NoError(t, x.Clients[0].Kill(t.Context()))
	return func() {
		must.NoError(t, x.Clients[0].Start(t.Context()))
		_, err := agent.WaitHealthy(t.Context(), x.Clients[0])
		must.NoError(t, err)
	}
}

// halfUpload removes the shim from the host, and kills the server while it is copied there again.
func halfUpload(x *table, t *testing.T) func() {
	bin := filepath.Join(x.state, "bin")
	shims := func() (whole, parts []string) {
		all, err := filepath.Glob(bin + "/outrider-shim-*")
		must.NoError(t, err)
		for _, path := range all {
			if strings.Contains(path, ".upload-") {
				parts = append(parts, path)
			} else {
				whole = append(whole, path)
			}
		}
		return whole, parts
	}
	whole, _ := shims()
	must.SliceLen(t, 1, whole)
	must.NoError(t, os.Remove(whole[0]))
	killed(t, x.onHost("outrider-shim")...)
	for start := time.Now(); ; {
		whole, parts := shims()
		if len(parts) > 0 {
			break
		}
		must.SliceEmpty(t, whole, must.Sprint("the copy was not seen"))
		must.Less(t, time.Minute, time.Since(start), must.Sprint("nobody copies the shim"))
	}
	must.NoError(t, x.box.Do("kill"))
	time.Sleep(100 * time.Millisecond) // for the end of the command that takes the copy
	whole, _ = shims()
	must.SliceEmpty(t, whole, must.Sprint("the copy was over before"))
	return func() { must.NoError(t, x.box.Do("start")) }
}

// fill fills a file system.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must.NoError(t, err)
	defer f.Close()
	for size := 1 << 20; size >= 1; size /= 4 {
		for err = nil; err == nil; _, err = f.Write(make([]byte, size)) {
		}
		must.ErrorIs(t, err, unix.ENOSPC)
	}
	return func() { must.NoError(t, os.Remove(path)) }
}

// plugin is the process of the first client's plugin.
func (x *table) plugin(t *testing.T) int {
	t.Helper()
	all, err := task.Processes()
	must.NoError(t, err)
	for _, st := range task.Descendants(all, x.Clients[0].Info().Process.PID) {
		if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", st.PID)); filepath.Base(exe) == "nomad-driver-remote" {
			return st.PID
		}
	}
	t.Fatal("the plugin does not run")
	return 0
}

// killed kills processes.
func killed(t *testing.T, pids ...int) {
	t.Helper()
	must.SliceNotEmpty(t, pids)
	for _, pid := range pids {
		must.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
}

// TestFaults_OfARemoteTaskAreToldAsTheyWere breaks what lies between Nomad and its tasks on an SSH host, and the host,
// one fault after the other. In each, tasks are started, run, end and are stopped meanwhile. No task runs twice, each
// exit is told once, exactly or as lost, and nothing is left.
func TestFaults_OfARemoteTaskAreToldAsTheyWere(t *testing.T) {
	disk := filepath.Join(mkdir(t), "disk")
	must.NoError(t, os.Mkdir(disk, 0o777))
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=1777,size=96m"); errors.Is(err, unix.EPERM) {
		t.Skip("needs the right to mount file systems")
	} else {
		must.NoError(t, err)
	}
	t.Cleanup(func() { test.NoError(t, unix.Unmount(disk, 0)) })
	x := &table{classes: []class{token}, kinds: []string{"box"}, nodes: 2, network: true,
		state: filepath.Join(disk, "state")}
	x.start(t)
	x.suffers(t, faults)
}

// The same of tasks in an engine on the host, which is reached through its sshd.
func TestFaults_OfATaskInAnEngineAreToldAsTheyWere(t *testing.T) {
	x := &table{classes: []class{token}, nodes: 2, network: true}
	x.start(t)
	if x.engine == nil {
		t.Skip("no Docker engine answers")
	}
	x.kinds = []string{tunnel}
	x.suffers(t, slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !f.between }))
}

// suffers runs the rows, or one of a sample, and sees that nothing is left.
func (x *table) suffers(t *testing.T, rows []fault) {
	t.Helper()
	for i, f := range rows {
		t.Run(f.name, func(t *testing.T) {
			sampled(t, i, len(rows))
			x.suffer(t, f)
		})
	}
	x.empty(t)
	x.ends(t)
}

// victim is a task of a fault.
type victim struct {
	*cell
	code int // that it ends with, unless it is killed
}

// victim makes a batch job. What it counts by is a process that no signal but SIGKILL ends.
func (x *table) victim(f fault, state string, code, attempts int) victim {
	c := &cell{table: x, by: token, kind: x.kinds[0], row: f.name, n: int(cellCount.Add(1)),
		job: strings.ReplaceAll(f.name+"-"+state, " ", "-")}
	c.spec = func(j *api.Job) {
		j.Type = new("batch")
		script := fmt.Sprintf(`f=%s/%s; echo $$ >>$f.0; trap 'echo >>$f.term' TERM; (trap '' TERM; exec sleep %s0) & p=$!
			while kill -0 $p 2>/dev/null; do wait $p; done; exit %d`, c.runs, c.job, c.mark(), code)
		j.TaskGroups[0].Tasks[0].SetConfig("args", []string{"-c", script}).KillTimeout = new(4 * time.Second)
		j.TaskGroups[0].RestartPolicy = &api.RestartPolicy{Attempts: new(attempts), Interval: new(10 * time.Minute),
			Delay: new(time.Second), Mode: new("fail")}
		j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	}
	return victim{c, code}
}

// also is both edits of a job.
func also(first, then func(*api.Job)) func(*api.Job) {
	return func(j *api.Job) {
		first(j)
		then(j)
	}
}

// suffer is a row.
func (x *table) suffer(t *testing.T, f fault) {
	x.only(t, 0)
	runs, ends, stops := x.victim(f, "running", 7, 0), x.victim(f, "ending", 7, 0), x.victim(f, "stopping", 7, 0)
	stops.spec = also(stops.spec, func(j *api.Job) { j.TaskGroups[0].Tasks[0].KillTimeout = new(20 * time.Second) })
	done, again := x.victim(f, "done", 0, 100), x.victim(f, "again", 7, 100)
	all := []*cell{runs.cell, ends.cell, stops.cell, done.cell, again.cell}
	together(all, func(c *cell) {
		c.submit(t)
		c.started(t)
	})
	must.NoError(t, x.engine.know(all...))
	_, _, err := x.api().Jobs().Deregister(stops.job, false, nil)
	must.NoError(t, err)
	stops.within(t, "is being stopped", func() error {
		_, err := os.Stat(fmt.Sprintf("%s/%s.term", x.runs, stops.job))
		return err
	})
	var starts []victim // at the same time: when the first one has started, others have begun to
	var submitted sync.WaitGroup
	for i := range 6 {
		v := x.victim(f, fmt.Sprint("starting", i), 0, 100)
		starts = append(starts, v)
		submitted.Go(func() { v.submit(t) })
	}
	testsupport.Eventually(t, "one starts", func() bool {
		return slices.ContainsFunc(starts, func(v victim) bool { return v.starts(0) > 0 })
	})
	must.SliceLen(t, 1, stops.look.of(stops.n, 0), must.Sprint("its stop is over before the fault comes"))
	struck := time.Now()
	heal := f.strike(x, t)
	if !f.ends {
		ends.kill(t)
		done.kill(t)
		again.kill(t)
	}
	submitted.Wait()
	if f.moves {
		x.only(t, -1)
	}
	time.Sleep(f.lasts)
	heal()
	x.only(t, -1)

	if !f.ends {
		runs.untouched(t)
		runs.kill(t)
	}
	runs.told(t, f.ends, f.ends)
	ends.told(t, f.unseen, f.ends)
	if !f.unseen {
		done.told(t, false, false)
	}
	again.within(t, "runs again", func() error {
		if got := again.look.of(again.n, 0); len(got) != 1 || again.starts(0) != 2 {
			return fmt.Errorf("%v run, it was started %d times", got, again.starts(0))
		}
		return nil
	})
	if f.moves {
		test.Greater(t, 1, len(runs.allocs()), test.Sprint("its node was not lost"))
	}
	stops.gone(t, 0)
	stops.within(t, "is told as stopped", func() error {
		s := stops.states()
		if len(s) == 1 && (s[0] == "complete" || s[0] == "lost" && f.moves) {
			return nil
		}
		return fmt.Errorf("it is %v", s)
	})
	test.Eq(t, 1, stops.starts(0), test.Sprint(stops))
	for _, v := range starts {
		refused := false
		var since time.Time // when it was seen first
		v.within(t, "is started", func() error {
			refused = f.refuses != "" && len(v.said(f.refuses)) == 1 || f.deaf && v.notTaken()
			if refused {
				return nil
			}
			if got := v.look.of(v.n, 0); len(got) != 1 {
				since = time.Time{}
				return fmt.Errorf("%d processes", len(got))
			}
			if since.IsZero() {
				since = time.Now()
			}
			// an agent that was killed before it told the servers that a task runs does not tell them later
			if _, err := v.placed(); err != nil && time.Since(since) < 20*time.Second {
				return err
			}
			return nil
		})
		want, least, most := "failed", 0, 0
		if !refused {
			v.kill(t)
			want, least, most = "complete", 1, 1+len(v.said("Lost: ")) // a lost one may not have come to count
		}
		v.within(t, "is told as "+want, func() error {
			if s := v.states(); s[len(s)-1] != want {
				return fmt.Errorf("it is %v", s)
			}
			return nil
		})
		if n := v.starts(0); n < least || n > most {
			t.Errorf("%s: started %d times, want %d to %d\n%s", v, n, least, most, v.story())
		}
	}
	if n := again.starts(0); n != 2 { // some seconds later
		t.Errorf("%s: started %d times, want 2\n%s", again, n, again.story())
	}
	for _, v := range append(starts, runs, ends, stops, done, again) {
		v.finish(t)
	}
	hit := slices.DeleteFunc(slices.Clone(starts), func(v victim) bool { return !v.startedAcross(struck) })
	test.SliceNotEmpty(t, hit, test.Sprint("no task was being started when the fault came"))
	t.Logf("the fault met %d starts; running %s; ending %s; stopping %s; done %s", len(hit), outcome(runs), outcome(ends),
		outcome(stops), outcome(done))
}

// kill ends the process that the task waits for.
func (v victim) kill(t *testing.T) {
	t.Helper()
	got := v.look.of(v.n, 0)
	if len(got) != 1 {
		t.Fatalf("%s: %v run\n%s", v, got, v.story())
	}
	killed(t, got[0].pid)
}

// told waits until Nomad tells an exit, once an allocation: the task's own code, or that it is lost.
func (v victim) told(t *testing.T, mayBeLost, mustBeLost bool) {
	t.Helper()
	exact := fmt.Sprintf("Exit Code: %d", v.code)
	want := "failed"
	if v.code == 0 {
		want = "complete"
	}
	v.within(t, "is told as ended", func() error {
		if s := v.states(); s[len(s)-1] != want {
			return fmt.Errorf("it is %v", s)
		}
		return nil
	})
	time.Sleep(1500 * time.Millisecond) // for a second start
	all := v.allocs()
	last := all[len(all)-1]
	ended, isLost := said(last, "Exit Code: "), len(said(last, "Lost: ")) == 1
	right := len(ended) == 1 && v.starts(0) == 1 && len(v.look.of(v.n, 0)) == 0 &&
		(isLost && mayBeLost || !isLost && !mustBeLost && strings.Contains(ended[0], exact))
	for _, a := range all[:len(all)-1] { // lost with its node, which is back: what it tells counts no more, and is true
		for _, s := range said(a, "Exit Code: ") {
			right = right && (strings.Contains(s, exact) || strings.Contains(s, "Left object "))
		}
	}
	if !right {
		t.Errorf("%s: started %d times, told as %q, want %q once\n%s", v, v.starts(0), ended, exact, v.story())
	}
}

// allocs are those of the job, the oldest first.
func (v victim) allocs() []*api.AllocationListStub {
	list, _, _ := v.api().Jobs().Allocations(v.job, true, nil)
	slices.SortFunc(list, func(a, b *api.AllocationListStub) int { return int(a.CreateIndex) - int(b.CreateIndex) })
	return list
}

// states are the allocations', at least one.
func (v victim) states() (list []string) {
	for _, a := range v.allocs() {
		list = append(list, a.ClientStatus)
	}
	return append(list, make([]string, max(0, 1-len(list)))...)
}

// notTaken reports whether Nomad's client failed the only allocation before it had a task, since the plugin had ended
// (makeFailedAlloc in Nomad's client/client.go).
func (v victim) notTaken() bool {
	all := v.allocs()
	return len(all) == 1 && strings.HasPrefix(all[0].ClientDescription, "Unable to add allocation due to error: ") &&
		strings.HasSuffix(all[0].ClientDescription, ": plugin is shut down")
}

// said are the messages of all allocations with a text.
func (v victim) said(text string) (list []string) {
	for _, a := range v.allocs() {
		list = append(list, said(a, text)...)
	}
	return list
}

// said are the messages of an allocation with a text.
func said(a *api.AllocationListStub, text string) (list []string) {
	if s := a.TaskStates["main"]; s != nil {
		for _, e := range s.Events {
			if strings.Contains(e.DisplayMessage, text) {
				list = append(list, e.DisplayMessage)
			}
		}
	}
	return list
}

// startedAcross reports whether a moment lies between the beginning and the end of the task's start.
func (v victim) startedAcross(moment time.Time) (begun bool) {
	for _, a := range v.allocs() {
		if s := a.TaskStates["main"]; s != nil {
			for _, e := range s.Events {
				before := time.Unix(0, e.Time).Before(moment)
				begun = begun || before && e.Type == api.TaskSetup
				if before && e.Type == api.TaskStarted {
					return false
				}
			}
		}
	}
	return begun
}

// outcome is what is told of a task, for a reader.
func outcome(v victim) string { return fmt.Sprintf("%v %q", v.states(), v.said("Exit Code: ")) }
