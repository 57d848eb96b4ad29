// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// conf is the config block of a task.
type conf map[string]any

func sh(script string) conf { return nomadtest.Shell(script) }

// with returns a copy of the configuration with more options.
func (c conf) with(more conf) conf {
	c = maps.Clone(c)
	maps.Copy(c, more)
	return c
}

var jobNumber atomic.Int64

// job returns a batch job with one task, which is not restarted.
func job(t testing.TB, c conf, edit ...func(*api.Job, *api.Task)) *api.Job {
	short := strings.ToLower(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:])
	id := fmt.Sprintf("%.40s-%d", strings.Map(func(r rune) rune {
		if r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, short), jobNumber.Add(1))
	j, task := nomadtest.Job(id, "exec-lite", c)
	task.KillTimeout = new(20 * time.Second) // for a busy machine; jobs whose tasks ignore signals set a shorter one
	for _, e := range edit {
		e(j, task)
	}
	return j
}

// small makes a job with count tasks, each so small that all fit on one node.
func small(count int) func(*api.Job, *api.Task) {
	return func(j *api.Job, task *api.Task) {
		j.TaskGroups[0].Count = &count
		task.Resources = &api.Resources{CPU: new(5), MemoryMB: new(10)}
	}
}

type alloc struct {
	n    *node
	id   string
	job  string
	task string // the task's name; empty: main
}

func (a *alloc) taskName() string { return cmp.Or(a.task, "main") }

// submit registers a job and returns its allocation.
func (n *node) submit(t testing.TB, j *api.Job) *alloc {
	t.Helper()
	_, _, err := n.Client().Jobs().Register(j, nil)
	must.NoError(t, err, must.Sprint("failed to register job"))
	return &alloc{n: n, job: *j.ID, id: n.allocs(t, *j.ID, 1)[0].id}
}

// submitHCL submits the job of a job file, and returns the allocation of its first task.
func (n *node) submitHCL(t testing.TB, text string, edit ...func(*api.Job)) *alloc {
	t.Helper()
	j, err := n.Client().Jobs().ParseHCL(text, true)
	must.NoError(t, err)
	first := j.TaskGroups[0].Tasks[0]
	first.KillTimeout = new(20 * time.Second) // for a busy machine
	for _, f := range edit {
		f(j)
	}
	a := n.submit(t, j)
	a.task = first.Name
	return a
}

// start submits a job with this configuration and waits until it runs.
func (n *node) start(t testing.TB, c conf, edit ...func(*api.Job, *api.Task)) *alloc {
	t.Helper()
	a := n.submit(t, job(t, c, edit...))
	a.running(t)
	return a
}

func (a *alloc) info() (*api.Allocation, *api.TaskState, error) {
	i, _, err := a.n.Client().Allocations().Info(a.id, nil)
	if err != nil {
		return nil, nil, err
	}
	st := i.TaskStates[a.taskName()]
	if st == nil {
		st = &api.TaskState{}
	}
	return i, st, nil
}

func (a *alloc) stub(t testing.TB) *api.Allocation {
	t.Helper()
	i, _, err := a.info()
	must.NoError(t, err)
	return i
}

// patience is how long a test waits for an agent to act. A client that failed to ask its server for allocations
// waits for 30 to 60 seconds before it asks again (retryIntv in Nomad's client/client.go).
const patience = 3 * time.Minute

func (a *alloc) running(t testing.TB) {
	t.Helper()
	testsupport.Within(t, patience, func() error {
		i, st, err := a.info()
		if err == nil && (i.ClientStatus != "running" || st.State != "running") {
			err = fmt.Errorf("%s is %s (%s): %s", a.job, i.ClientStatus, st.State, a.story())
		}
		return err
	})
}

// held waits until the agent has started the task or re-attached to it. The server's state can be out of date after a
// kill of the agent: if the agent was killed after the start but before the event of the start, the server gets
// "running" only with the task's next event (client/allocrunner/taskrunner/task_runner.go, runDriver).
func (a *alloc) held(t testing.TB) {
	t.Helper()
	testsupport.Within(t, patience, func() error {
		u, err := a.n.Client().Allocations().Stats(a.stub(t), nil)
		if err == nil && u.Tasks[a.taskName()] == nil {
			err = fmt.Errorf("the agent has no statistics of %s: %s", a.job, a.story())
		}
		return err
	})
}

// ended waits until the task is dead, and returns its outcome.
func (a *alloc) ended(t testing.TB) string {
	t.Helper()
	testsupport.Within(t, patience, a.isDead)
	return a.outcome()
}

func (a *alloc) isDead() error {
	i, st, err := a.info()
	if err == nil && (st.State != "dead" || i.ClientStatus != "complete" && i.ClientStatus != "failed") {
		err = fmt.Errorf("%s is %s (%s): %s", a.job, i.ClientStatus, st.State, a.story())
	}
	return err
}

// outcome returns the last exit among the task's events: "exit 7", "signal 15", "oom" or "lost"; or "" without an exit.
func (a *alloc) outcome() string {
	_, st, err := a.info()
	if err != nil {
		return err.Error()
	}
	for _, e := range slices.Backward(st.Events) {
		if e.Type != api.TaskTerminated {
			continue
		}
		switch {
		case strings.Contains(e.DisplayMessage, "task is lost"):
			return "lost"
		case e.Details["oom_killed"] == "true":
			return "oom"
		case e.Details["signal"] != "0":
			return "signal " + e.Details["signal"]
		}
		return "exit " + e.Details["exit_code"]
	}
	return ""
}

// story returns the task's events as one line.
func (a *alloc) story() string {
	_, st, err := a.info()
	if err != nil {
		return err.Error()
	}
	return nomadtest.Story(st)
}

// tells waits until an event of the task contains text. Nomad's client sends events to its server in batches, and the
// driver's events may follow the event of the exit.
func (a *alloc) tells(text string) error {
	return testsupport.Poll(patience, func() error {
		if s := a.story(); !strings.Contains(s, text) {
			return fmt.Errorf("no event has %q: %s", text, s)
		}
		return nil
	})
}

func (a *alloc) stop(t testing.TB) {
	t.Helper()
	nomadtest.Stop(t, a.n.Client(), a.job)
}

// dir is the allocation's directory on the host.
func (a *alloc) dir() string { return filepath.Join(a.n.DataDir(), "alloc", a.id) }

// output reads a stream through Nomad's API, from its oldest file to the newest.
func (a *alloc) output(t testing.TB, stream string) string {
	t.Helper()
	b, err := a.read(stream)
	if err != nil {
		t.Fatalf("failed to read %s of %s: %v", stream, a.job, err)
	}
	return b
}

// read returns a stream of the task. Nomad's API can refuse it as "not started yet" although the task runs, until the
// task's next event: allocRunner.AllocState, which the agent's statistics call each second, may store an outdated copy
// of the task states (client/allocrunner/alloc_runner.go). In that case, read returns the stream's first file.
func (a *alloc) read(stream string) (string, error) {
	i, st, err := a.info()
	if err != nil {
		return "", err
	}
	out, err := a.stream(i, stream)
	if err == nil || !strings.Contains(err.Error(), "not started yet") || st.State != "running" {
		return out, err
	}
	file, err := a.n.Client().AllocFS().Cat(i, "alloc/logs/"+a.taskName()+"."+stream+".0", nil)
	if err != nil {
		return "", err
	}
	defer file.Close()
	b, err := io.ReadAll(file)
	return string(b), err
}

// readable waits until Nomad's API returns the output of a running task. Its signals cause events, see read.
func (a *alloc) readable(t testing.TB) {
	t.Helper()
	testsupport.Within(t, patience, func() error {
		i, _, err := a.info()
		if err != nil {
			return err
		}
		_, err = a.stream(i, "stdout")
		if err != nil {
			err = errors.Join(err, a.n.Client().Allocations().Signal(i, nil, a.taskName(), "SIGCONT"))
		}
		return err
	})
}

func (a *alloc) stream(i *api.Allocation, stream string) (string, error) {
	cancel := make(chan struct{})
	defer close(cancel)
	frames, errs := a.n.Client().AllocFS().Logs(i, false, a.taskName(), stream, api.OriginStart, 0, cancel, nil)
	b, err := io.ReadAll(api.NewFrameReader(frames, errs, cancel))
	return string(b), err
}

// says waits until a stream contains text.
func (a *alloc) says(t testing.TB, stream, text string) {
	t.Helper()
	testsupport.Within(t, patience, func() error {
		out, err := a.read(stream)
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("%s is %q, want %q in it", stream, last(out, 500), text)
		}
		return err
	})
}

// session runs a command in a task through Nomad's API.
func (a *alloc) session(t *testing.T, tty bool, stdin io.Reader, sizes <-chan api.TerminalSize,
	argv ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	code, err := a.n.Client().Allocations().Exec(ctx, a.stub(t), "main", tty, argv, stdin, &out, &errOut, sizes, nil)
	if err != nil {
		t.Errorf("failed to run %q: %v; stdout %q, stderr %q", argv, err, out.String(), errOut.String())
	}
	return code, out.String(), errOut.String()
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }

// pid returns the task's main process, as the supervisor has recorded it.
func (a *alloc) pid(t testing.TB) proc {
	t.Helper()
	p, err := readProc(a.n.stateOf(t, a.id).Identity.PID)
	if err != nil {
		t.Fatalf("the task of %s has no process: %v", a.job, err)
	}
	return p
}

// numbered counts the complete lines that the counter command has printed. A missing, doubled or torn line is an error.
// ended reports whether the last line was printed.
func numbered(out string) (n int, ended bool, err error) {
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case !strings.HasSuffix(line, "\n"):
			return n, ended, nil // the last line is not complete yet
		case ended || len(f) < 2:
			return n, ended, fmt.Errorf("line %q after %d lines", line, n)
		case f[0] == "last":
			ended = true
		case f[0] != "line":
			return n, ended, fmt.Errorf("line %q after %d lines", line, n)
		}
		if f[1] != strconv.Itoa(n) {
			return n, ended, fmt.Errorf("line %q, want number %d", strings.TrimSpace(line), n)
		}
		if !ended {
			n++
		}
	}
	return n, ended, nil
}

// printsOn waits until the counter command has printed at least before+more bytes, without an error of numbered.
func (a *alloc) printsOn(t testing.TB, before, more int) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		out, err := a.read("stdout")
		if err != nil {
			return err
		}
		if len(out) < before+more {
			return fmt.Errorf("%d bytes of output after %d", len(out), before)
		}
		_, _, err = numbered(out)
		return err
	})
}

// touch creates an empty file. Some tasks wait for one.
func touch(t testing.TB, path string) {
	t.Helper()
	must.NoError(t, os.WriteFile(path, nil, 0o644))
}

// needRootAgent skips the test if the agent is not root.
func needRootAgent(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs an agent that runs as root")
	}
}

func needMemoryCgroup(t testing.TB) {
	t.Helper()
	if !hasMemoryCgroup() {
		t.Skip("needs a memory cgroup and the right to use it")
	}
}

func hasMemoryCgroup() bool { return slices.Contains(cgroup.Detect("").Controllers, "memory") }

func TestOutput_IsFollowedThroughRotation(t *testing.T) {
	t.Parallel()
	n := commonNode.get(t)
	// the task fills three files of 1 MiB and begins a fourth, while a client follows
	a := n.start(t, conf{"command": counter, "args": []string{"-pad", "120", "-burst", "200", "-every", "40ms", "-lines",
		"24000", "-then", "exit:0"},
		"logs": conf{"max_files": 10, "max_file_size": 1}})
	a.readable(t)

	cancel := make(chan struct{})
	defer time.AfterFunc(5*time.Minute, func() { close(cancel) }).Stop()
	frames, errs := n.Client().AllocFS().Logs(a.stub(t), true, "main", "stdout", api.OriginStart, 0, cancel, nil)
	stream := bufio.NewReader(api.NewFrameReader(frames, errs, cancel))
	var b strings.Builder
	for line := ""; !strings.HasPrefix(line, "last"); b.WriteString(line) {
		var err error
		line, err = stream.ReadString('\n')
		must.NoError(t, err, must.Sprintf("the stream ended after %d bytes: %q", b.Len(), last(b.String(), 100)))
	}
	lines, ended, err := numbered(b.String())
	must.NoError(t, err, must.Sprintf("followed %d lines, end %v", lines, ended))
	must.True(t, ended, must.Sprintf("followed %d lines, end %v", lines, ended))
	test.Eq(t, 24000, lines, test.Sprintf("followed %d lines, end %v", lines, ended))
	test.Eq(t, "exit 0", a.ended(t), test.Sprint("ended by"))
	test.True(t, a.output(t, "stdout") == b.String(), test.Sprint("the files differ from the followed output"))
	files, _ := filepath.Glob(a.dir() + "/alloc/logs/main.stdout.*")
	test.SliceLen(t, 4, files, test.Sprintf("%d log files, want 4", len(files)))
}
