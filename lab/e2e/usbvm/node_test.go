// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbvm

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// node is the agent.
type node struct{ agent.Agent }

// end closes the agent.
func (n *node) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return n.Close(ctx)
}

// clientConfig makes the agent log changes of devices. Tasks of exec get only the programs that they use.
func clientConfig(t *testing.T) string {
	t.Helper()
	files := nomadtest.Files(t, "sh", "cat", "ls", "sleep", "stty", "head", "timeout", "lsusb", "id")
	files["/etc/passwd"], files["/etc/group"] = "/etc/passwd", "/etc/group"
	return "log_level = \"DEBUG\"\n" + nomadtest.Chroot(t, files)
}

var jobs atomic.Int64

// task is the one task of a job.
type task struct {
	n     *node
	job   string
	alloc string
}

// spec is a task to run: a line of shell with a device.
type spec struct {
	driver string // empty: exec-lite
	device string // the type
	id     string // one device of the type; empty: any
	script string
}

// lastLine is printed by each task at its end. Collectors of output can write it after Nomad has reported the end.
const lastLine = "the end of the output"

// submit registers a job.
func (n *node) submit(t testing.TB, s spec) *task {
	t.Helper()
	driver := cmp.Or(s.driver, "exec-lite")
	x := &task{n: n, job: fmt.Sprintf("%s-%d", driver, jobs.Add(1))}
	d := &api.RequestedDevice{Name: s.device}
	if s.id != "" {
		d = nomadtest.OneDevice(s.device, s.id)
	}
	script := s.script + "\nstatus=$?; echo " + lastLine + "; exit $status"
	job, main := nomadtest.Job(x.job, driver, nomadtest.Shell(script))
	main.User = "nobody"
	main.KillTimeout = new(2 * time.Second)
	main.Resources.MemoryMB, main.Resources.Devices = new(64), []*api.RequestedDevice{d}
	_, _, err := n.Client().Jobs().Register(job, nil)
	must.NoError(t, err, must.Sprint("failed to register job"))
	t.Cleanup(func() { nomadtest.Stop(t, n.Client(), x.job) })
	return x
}

// placed waits until the job has an allocation.
func (x *task) placed(t testing.TB) {
	t.Helper()
	x.alloc = nomadtest.Allocs(t, x.n.Client(), x.job, 1)[0].ID
}

func (x *task) state() (*api.TaskState, error) {
	a, _, err := x.n.Client().Allocations().Info(x.alloc, nil)
	if err != nil {
		return nil, err
	}
	if st := a.TaskStates["main"]; st != nil {
		return st, nil
	}
	return &api.TaskState{}, nil
}

// running waits until the task runs.
func (x *task) running(t testing.TB) *task {
	t.Helper()
	x.placed(t)
	testsupport.Within(t, 2*time.Minute, func() error { return x.is("running") })
	return x
}

func (x *task) is(state string) error {
	st, err := x.state()
	if err == nil && st.State != state {
		err = fmt.Errorf("the task is %s: %s", st.State, nomadtest.Story(st))
	}
	return err
}

// ended waits until the task has ended without a failure, and returns its output.
func (x *task) ended(t testing.TB) string {
	t.Helper()
	x.placed(t)
	testsupport.Within(t, 2*time.Minute, func() error { return x.is("dead") })
	st, err := x.state()
	must.NoError(t, err)
	if st.Failed {
		t.Errorf("the task has failed: %s\n%s%s", nomadtest.Story(st), x.output("stdout"), x.output("stderr"))
	}
	var out string
	testsupport.Within(t, time.Minute, func() error {
		var whole bool
		out, whole = strings.CutSuffix(x.output("stdout"), lastLine+"\n")
		if !whole {
			return fmt.Errorf("the end of its output is missing: %q", out)
		}
		return nil
	})
	return out
}

// output returns what the task has printed to a stream.
func (x *task) output(stream string) string {
	b, _ := os.ReadFile(filepath.Join(x.n.DataDir(), "alloc", x.alloc, "alloc", "logs", "main."+stream+".0"))
	return string(b)
}

// tellLog prints the end of the agent's log, without debug messages.
func (n *node) tellLog() {
	log, err := n.Log()
	if err != nil {
		fmt.Println(err)
	}
	var lines []string
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "[DEBUG]") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	fmt.Println(strings.Join(lines[max(0, len(lines)-60):], "\n"))
}
