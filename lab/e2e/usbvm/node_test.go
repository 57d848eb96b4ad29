// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// node is the agent.
type node struct{ agent.Agent }

// end closes the agent.
func (n *node) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return n.Close(ctx)
}

// clientConfig makes the agent log changes of devices. Tasks of exec get only the programs that they use, because Nomad
// copies all of these files for each task.
func clientConfig(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("log_level = \"DEBUG\"\nclient {\n  chroot_env {\n")
	files := map[string]bool{"/etc/passwd": true, "/etc/group": true}
	for _, name := range []string{"sh", "cat", "ls", "sleep", "stty", "head", "timeout", "lsusb", "id"} {
		path, err := exec.LookPath(name)
		must.NoError(t, err)
		out, err := exec.Command("ldd", path).Output()
		must.NoError(t, err)
		files["/bin/"+name] = true
		for _, f := range strings.Fields(string(out)) {
			if strings.HasPrefix(f, "/") {
				files[f] = true
			}
		}
	}
	for _, f := range slices.Sorted(maps.Keys(files)) {
		real, err := filepath.EvalSymlinks(f) // Nomad would copy the link
		must.NoError(t, err)
		fmt.Fprintf(&b, "    %q = %q\n", real, f)
	}
	b.WriteString("  }\n}\n")
	return b.String()
}

// device is a device as the server reports it: its ID, and the reason if it is unhealthy.
type device struct{ id, why string }

// devices returns the devices of a type, in order.
func (n *node) devices(kind string) ([]device, error) {
	stubs, _, err := n.Client().Nodes().List(nil)
	if err != nil || len(stubs) != 1 {
		return nil, errors.Join(err, fmt.Errorf("%d nodes", len(stubs)))
	}
	info, _, err := n.Client().Nodes().Info(stubs[0].ID, nil)
	if err != nil {
		return nil, err
	}
	var found []device
	for _, g := range info.NodeResources.Devices {
		for _, d := range g.Instances {
			if g.Type == kind {
				found = append(found, device{d.ID, d.HealthDescription})
			}
		}
	}
	slices.SortFunc(found, func(a, b device) int { return strings.Compare(a.id, b.id) })
	return found, nil
}

// offers waits until the server has exactly this many devices of a type, all healthy, and returns their IDs. An agent
// updates its server 5 to 10 s after a change.
func (n *node) offers(t testing.TB, kind string, want int) (ids []string) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		ids = nil
		all, err := n.devices(kind)
		for _, d := range all {
			if d.why == "" {
				ids = append(ids, d.id)
			}
		}
		if err == nil && (len(ids) != want || len(all) != want) {
			err = fmt.Errorf("the server has %v", all)
		}
		return err
	})
	return ids
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
	if s.driver == "" {
		s.driver = "exec-lite"
	}
	x := &task{n: n, job: fmt.Sprintf("%s-%d", s.driver, jobs.Add(1))}
	d := &api.RequestedDevice{Name: s.device}
	if s.id != "" {
		d.Constraints = []*api.Constraint{
			{LTarget: "${device.attr.ids}", Operand: "set_contains", RTarget: s.id},
			{LTarget: "${device.ids}", Operand: "set_contains", RTarget: s.id},
		}
	}
	main := api.NewTask("main", s.driver).
		SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", s.script + "\nstatus=$?; echo " + lastLine +
		"; exit $status"}).
		Require(&api.Resources{CPU: new(20), MemoryMB: new(64), Devices: []*api.RequestedDevice{d}})
	main.User = "nobody"
	main.LogConfig = &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)}
	main.KillTimeout = new(2 * time.Second)
	group := api.NewTaskGroup("g", 1).AddTask(main)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(10)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail"), Interval: new(time.Minute),
		Delay: new(50 * time.Millisecond)}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	job := api.NewBatchJob(x.job, x.job, "global", 50).AddTaskGroup(group)
	_, _, err := n.Client().Jobs().Register(job, nil)
	must.NoError(t, err, must.Sprint("failed to register job"))
	t.Cleanup(func() { x.stop(t) })
	return x
}

// placed waits until the job has an allocation.
func (x *task) placed(t testing.TB) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		list, _, err := x.n.Client().Jobs().Allocations(x.job, false, nil)
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("job %s has no allocation", x.job)
		}
		if err == nil {
			x.alloc = list[0].ID
		}
		return err
	})
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
		err = fmt.Errorf("the task is %s: %s", st.State, story(st))
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
		t.Errorf("the task has failed: %s\n%s%s", story(st), x.output("stdout"), x.output("stderr"))
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

func story(st *api.TaskState) string {
	var events []string
	for _, e := range st.Events {
		events = append(events, e.DisplayMessage)
	}
	return strings.Join(events, "; ")
}

// output returns what the task has printed to a stream.
func (x *task) output(stream string) string {
	b, _ := os.ReadFile(filepath.Join(x.n.DataDir(), "alloc", x.alloc, "alloc", "logs", "main."+stream+".0"))
	return string(b)
}

// stop stops the job and waits for the end of its task.
func (x *task) stop(t testing.TB) {
	t.Helper()
	_, _, err := x.n.Client().Jobs().Deregister(x.job, false, nil)
	test.NoError(t, err)
	if x.alloc != "" {
		testsupport.Within(t, time.Minute, func() error { return x.is("dead") })
	}
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
