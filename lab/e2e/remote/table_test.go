// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/remotehost"
)

// class is what the plugins of three clients have to ask Nomad with: a column of the table.
type class string

const (
	token    class = "token"    // a token of the plugin's own
	identity class = "identity" // the workload identity alone
	noAPI    class = "none"     // an API that refuses connections
	hangs    class = "hangs"    // an API that never answers
)

// asks reports whether a plugin gets answers.
func (c class) asks() bool { return c == token || c == identity }

// perClass is how many clients each class has in the table of decisions.
const perClass = 3

// tunnel is the engine as it is reached through the host. It is no endpoint of the table's rows.
const tunnel = "tunnel"

// unowned is orphan_timeout of the tasks where the reaper has no evidence.
const unowned = 25 * time.Second

// table is a cluster with three clients of each class, and the endpoints of their tasks.
type table struct {
	*world
	classes []class
	kinds   []string // of endpoints
	nodes   int      // of each class
	runs    string   // directory in which each task counts its starts
	engine  *engine  // nil: there is none
	network bool     // the host has one of its own, so that its link can be down
	state   string   // directory of the objects on the host, as this machine has it
	box     remotehost.Host
	look    *watcher

	mu    sync.Mutex
	slice string // cgroup that has those of the tasks on the host, if it has any
}

func newTable(t *testing.T, classes ...class) *table {
	t.Helper()
	x := &table{classes: classes, kinds: []string{"box"}, nodes: perClass}
	x.start(t)
	return x
}

// start starts a table that has its columns. With a state directory, the host has it there, and there is no engine.
func (x *table) start(t *testing.T) {
	t.Helper()
	if !agent.Privileged() {
		t.Skip("a host is simulated by root")
	}
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil {
		if _, err := exec.LookPath("sshd"); err != nil {
			t.Skip("a simulated host needs sshd")
		}
	}
	plugin, err := remotePlugin()
	must.NoError(t, err)
	dir := mkdir(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	host := filepath.Join(dir, "host")
	own, run := x.state != "", remotehost.Start
	if x.network {
		run = remotehost.StartOnNetwork
	}
	x.box, err = run(ctx, plugin, host, "box")
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, end(x.box.Process)) })
	if own {
		x.box.Block = strings.Replace(x.box.Block, "ssh {\n", fmt.Sprintf("ssh {\n    state_dir = %q\n", x.state), 1)
	} else {
		// root has cgroups there, which are named by the path: that of another host of this machine is another one
		name := filepath.Base(dir)
		root := fmt.Sprintf("\"root\"\n    state_dir = %q", "/home/root/"+name)
		x.box.Block = strings.Replace(x.box.Block, `"remote"`, root, 1)
		x.state = filepath.Join(host, "home", "root", name)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	must.NoError(t, err)
	t.Cleanup(func() { silent.Close() })

	x.runs = filepath.Join(dir, "runs")
	blocks := x.box.Block + "\n"
	if !own {
		if e := newEngine(t); e != nil {
			x.kinds, x.engine = append(x.kinds, "engine"), e
			blocks += fmt.Sprintf("endpoint \"engine\" {\n  docker {\n    host = \"unix://%s\"\n  }\n}\n", e.socket)
			blocks += fmt.Sprintf("endpoint %q {\n  docker {\n    host = \"ssh://root@%s:%s%s\"\n    ssh {\n"+
				"      key_file = %q\n      host_keys = [%q]\n    }\n  }\n}\n", tunnel, x.box.Option("host"),
				x.box.Option("port"), e.socket, x.box.Option("key_file"), x.box.Option("host_keys"))
		}
	}
	must.NoError(t, os.Mkdir(x.runs, 0o777))
	must.NoError(t, os.Chmod(x.runs, 0o777))
	var clients []agent.Options
	for _, c := range x.classes {
		ask := map[class]string{
			token: fmt.Sprintf("address = \"http://127.0.0.1:${http_port}\"\n token_file = %q",
				filepath.Join(dir, "plugin")),
			identity: `address = "http://127.0.0.1:${http_port}"`,
			noAPI:    `address = "http://127.0.0.1:1"`,
			hangs:    fmt.Sprintf("address = \"http://%s\"", silent.Addr()),
		}[c]
		for i := range x.nodes {
			clients = append(clients, agent.Options{
				Name: fmt.Sprintf("%s%d", c, i), Config: fmt.Sprintf("client {\n  node_class = %q\n}\n", c),
				Plugins: []agent.Plugin{{Binary: plugin, Config: blocks + fmt.Sprintf(
					"cluster = %q\nlease = \"8s\"\nreap_every = \"2s\"\nreap_after = \"20s\"\napi {\n%s\n}\n", c, ask)}},
			})
		}
	}
	x.world = newWorld(t, dir, clients...)
	x.look = watch(t)
}

// end ends a process that is no child of this one.
func end(id task.Identity) error {
	p, err := os.FindProcess(id.PID)
	if err != nil || !id.Alive() {
		return err
	}
	if err := p.Signal(os.Interrupt); err != nil {
		return err
	}
	for start := time.Now(); id.Alive(); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			return fmt.Errorf("process %d does not end", id.PID)
		}
	}
	return nil
}

// client is the i-th of a class.
func (x *table) client(c class, i int) int { return slices.Index(x.classes, c)*x.nodes + i }

// only makes the i-th clients of all classes those on which jobs are placed, with none given no client, with -1 all.
func (x *table) only(t *testing.T, which ...int) {
	t.Helper()
	var all sync.WaitGroup
	for _, c := range x.classes {
		for i := range x.nodes {
			all.Go(func() { x.eligible(t, x.client(c, i), slices.Contains(which, i) || slices.Contains(which, -1)) })
		}
	}
	all.Wait()
}

// each calls f for the i-th client of every class, all at the same time.
func (x *table) each(t *testing.T, i int, f func(client int) error) {
	t.Helper()
	errs := make([]error, len(x.classes))
	var all sync.WaitGroup
	for n, c := range x.classes {
		all.Go(func() { errs[n] = f(x.client(c, i)) })
	}
	all.Wait()
	must.NoError(t, errors.Join(errs...))
}

// cell is a job of a row of the table, in one column.
type cell struct {
	*table
	by   class
	kind string
	row  string
	job  string
	n    int // tells its processes from others'
	spec func(*api.Job)

	version int
	was     proc // of index 0 at the last start
	times   int  // how often that was started
	alloc   string
}

var cellCount atomic.Int64

// cells are those of a row, one in each column, and start them.
func (x *table) cells(t *testing.T, row string, edit func(*api.Job)) []*cell {
	t.Helper()
	var list []*cell
	for _, by := range x.classes {
		for _, kind := range x.kinds {
			list = append(list, &cell{
				table: x, by: by, kind: kind, row: row, n: int(cellCount.Add(1)),
				job: strings.NewReplacer(" ", "-", "_", "-").Replace(row + "-" + kind + "-" + string(by)), spec: edit,
			})
		}
	}
	together(list, func(c *cell) {
		if by := c.by; by == identity {
			_, err := x.api().ACLPolicies().Upsert(&api.ACLPolicy{Name: c.job, Rules: `namespace "default" { policy = "read" }`,
				JobACL: &api.JobACL{Namespace: "default", JobID: c.job}}, nil)
			test.NoError(t, err)
		}
		c.submit(t)
	})
	together(list, func(c *cell) { c.started(t) })
	for _, c := range list {
		must.NotEq(t, proc{}, c.was, must.Sprint(c))
	}
	must.NoError(t, x.engine.know(list...))
	x.knowSlice(t, list)
	return list
}

// together calls f for each cell, all at the same time.
func together(list []*cell, f func(*cell)) {
	var all sync.WaitGroup
	for _, c := range list {
		all.Go(func() { f(c) })
	}
	all.Wait()
}

func (c *cell) String() string { return fmt.Sprintf("%s, %s, by %s", c.row, c.kind, c.by) }

// submit registers the job, in its next version.
func (c *cell) submit(t *testing.T, edit ...func(*api.Job)) {
	t.Helper()
	c.version++
	script := fmt.Sprintf(`echo $$ >> %s/%s.$NOMAD_ALLOC_INDEX; exec sleep %s$NOMAD_ALLOC_INDEX`, c.runs, c.job, c.mark())
	main := api.NewTask("main", "remote").SetConfig("endpoint", c.kind).SetConfig("args", []string{"-c", script}).
		Require(&api.Resources{CPU: new(10), MemoryMB: new(10)})
	if c.kind == "box" {
		main.SetConfig("command", "/bin/sh")
	} else {
		main.SetConfig("image", image).SetConfig("entrypoint", []string{"/bin/sh"}).
			SetConfig("mount", []map[string]string{{"source": c.runs, "target": c.runs}})
	}
	main.KillTimeout = new(3 * time.Second)
	if c.by != token {
		main.SetConfig("orphan_timeout", unowned.String())
	}
	if c.by == identity {
		main.Identity = &api.WorkloadIdentity{Env: true}
	}
	group := api.NewTaskGroup("g", 1).AddTask(main)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(20), Interval: new(10 * time.Minute), Delay: new(time.Second),
		Mode: new("delay")}
	job := api.NewServiceJob(c.job, c.job, "global", 50)
	job.Constrain(api.NewConstraint("${node.class}", "=", string(c.by)))
	job.AddTaskGroup(group)
	for _, f := range append([]func(*api.Job){c.spec}, edit...) {
		if f != nil {
			f(job)
		}
	}
	if *job.Type == "service" && group.Update == nil {
		group.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Duration(0)), HealthyDeadline: new(time.Minute),
			ProgressDeadline: new(2 * time.Minute), HealthCheck: new("task_states")}
	}
	_, _, err := c.api().Jobs().Register(job, nil)
	test.NoError(t, err)
}

// mark is what the processes of a version sleep for, before the index.
func (c *cell) mark() string { return fmt.Sprintf("8%05d%03d.%d", os.Getpid()%100000, c.n, c.version) }

func (c *cell) started(t *testing.T) {
	t.Helper()
	c.within(t, "runs at the start", func() error {
		got := c.look.of(c.n, 0)
		if len(got) != 1 {
			return fmt.Errorf("%d processes", len(got))
		}
		c.was, c.times = got[0], 1
		a, err := c.placed()
		if err == nil {
			c.alloc = a.ID
		}
		return err
	})
}

// placed is the allocation that runs.
func (c *cell) placed() (*api.Allocation, error) {
	list, _, err := c.api().Jobs().Allocations(c.job, true, nil)
	if err != nil {
		return nil, err
	}
	for _, stub := range list {
		if stub.ClientStatus == api.AllocClientStatusRunning && stub.DesiredStatus == api.AllocDesiredStatusRun &&
			strings.HasSuffix(stub.Name, "[0]") {
			a, _, err := c.api().Allocations().Info(stub.ID, nil)
			if err == nil && a.TaskStates["main"] != nil && a.TaskStates["main"].State == "running" {
				return a, nil
			}
		}
	}
	var states []string
	for _, a := range list {
		states = append(states, a.Name+" "+a.DesiredStatus+"/"+a.ClientStatus+" "+lastEvent(a.TaskStates["main"]))
	}
	return nil, fmt.Errorf("no allocation runs: %s", strings.Join(states, "; "))
}

func lastEvent(s *api.TaskState) string {
	if s == nil || len(s.Events) == 0 {
		return ""
	}
	return s.Events[len(s.Events)-1].DisplayMessage
}

// within waits for a minute and a half.
func (c *cell) within(t *testing.T, what string, f func() error) bool {
	t.Helper()
	var err error
	for start := time.Now(); time.Since(start) < 90*time.Second; time.Sleep(200 * time.Millisecond) {
		if err = f(); err == nil {
			return true
		}
	}
	t.Errorf("%s: it never %s: %v\n%s", c, what, err, c.story())
	return false
}

// story has the events of all allocations. Where Nomad has forgotten them, it has what the agents logged of the first.
func (c *cell) story() string {
	var b strings.Builder
	list, _, _ := c.api().Jobs().Allocations(c.job, true, nil)
	if len(list) == 0 && c.alloc != "" {
		for _, client := range c.Clients {
			log, _ := os.ReadFile(filepath.Join(client.Info().Dir, "agent.log"))
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, "alloc_id="+c.alloc) && strings.Contains(line, "Task event") {
					b.WriteString("    " + line)
				}
			}
		}
	}
	for _, a := range list {
		fmt.Fprintf(&b, "  %.8s on %s: %s/%s %s %s\n", a.ID, a.NodeName, a.DesiredStatus, a.ClientStatus,
			a.DesiredDescription, a.ClientDescription)
		if s := a.TaskStates["main"]; s != nil {
			for _, e := range s.Events {
				fmt.Fprintf(&b, "    %s %s: %s\n", time.Unix(0, e.Time).Format("15:04:05.0"), e.Type, e.DisplayMessage)
			}
		}
	}
	return b.String()
}

// starts is how often the task of an index counted its start.
func (c *cell) starts(index int) int {
	b, _ := os.ReadFile(fmt.Sprintf("%s/%s.%d", c.runs, c.job, index))
	return strings.Count(string(b), "\n")
}

// same waits until the job runs in an allocation, by default any but the first, which has taken the task over, and sees
// the process of the start.
func (c *cell) same(t *testing.T, alloc ...string) {
	t.Helper()
	c.within(t, "runs on", func() error {
		a, err := c.placed()
		if err == nil && len(alloc) == 0 && a.ID == c.alloc {
			return errors.New("it is in its first allocation")
		}
		if err == nil && len(alloc) > 0 && alloc[0] != "" && a.ID != alloc[0] {
			return errors.New("it is in another allocation")
		}
		return err
	})
	if len(alloc) == 0 {
		c.says(t, "Took over the running", "")
	}
	c.untouched(t)
}

// untouched sees the process of the start, and no other.
func (c *cell) untouched(t *testing.T) {
	t.Helper()
	got := c.look.of(c.n, 0)
	if len(got) != 1 || got[0] != c.was || c.starts(0) != c.times {
		t.Errorf("%s: the process %v of the start is %v now, started %d times\n%s", c, c.was, got, c.starts(0), c.story())
	}
}

// process sees the process of the start, while Nomad can't be asked for a story.
func (c *cell) process(t *testing.T) {
	t.Helper()
	if got := c.look.of(c.n, 0); len(got) != 1 || got[0] != c.was || c.starts(0) != c.times {
		t.Errorf("%s: the process %v of the start is %v now, started %d times", c, c.was, got, c.starts(0))
	}
}

// gone waits until no process of an index runs.
func (c *cell) gone(t *testing.T, index int) {
	t.Helper()
	c.within(t, fmt.Sprintf("ends [%d]", index), func() error {
		if got := c.look.of(c.n, index); len(got) > 0 {
			return fmt.Errorf("%v run", got)
		}
		return nil
	})
}

// stopped waits until no process of an index runs. Where Nomad answers, the stop of its allocation has ended it, for
// that reason: not orphan_timeout, nor the reaper. Elsewhere it was released.
func (c *cell) stopped(t *testing.T, index int, why string) {
	t.Helper()
	c.gone(t, index)
	if c.by.asks() {
		c.says(t, "Stopping", why)
	} else {
		c.released(t, "")
	}
}

// released waits for the event of a release: for that reason where Nomad answers, and because it does not elsewhere.
func (c *cell) released(t *testing.T, why string) {
	t.Helper()
	if !c.by.asks() {
		why = "the reason of the stop is not known"
	}
	c.says(t, "Released", why)
}

// says waits for the event of what is done to an object, with its reason.
func (c *cell) says(t *testing.T, done, why string) {
	t.Helper()
	event := regexp.MustCompile(done + ` object \S+ of .*: ` + regexp.QuoteMeta(why))
	c.within(t, fmt.Sprintf("says %q: %s", done, why), func() error {
		if !event.MatchString(c.story()) {
			return errors.New("not yet")
		}
		return nil
	})
}

// fresh waits until another process runs, and the last one does not.
func (c *cell) fresh(t *testing.T) {
	t.Helper()
	c.within(t, "runs anew", func() error {
		got := c.look.of(c.n, 0)
		if len(got) != 1 || got[0] == c.was {
			return fmt.Errorf("%v run", got)
		}
		c.times++
		c.was = got[0]
		return nil
	})
	c.within(t, "runs", func() error {
		_, err := c.placed()
		return err
	})
	c.untouched(t)
}

// finish stops the job. See empty.
func (c *cell) finish(t *testing.T) {
	t.Helper()
	c.look.allow(c.n)
	test.NoError(t, c.engine.know(c)) // that of another version is another object
	_, _, err := c.api().Jobs().Deregister(c.job, false, nil)
	test.NoError(t, err)
}

// empty waits until the reapers have ended and removed what nobody wants: everything.
func (x *table) empty(t *testing.T) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		if left := x.look.see(); len(left) > 0 {
			return fmt.Errorf("processes are left: %v", left)
		}
		for _, o := range x.objects(t) {
			b, _ := os.ReadFile(filepath.Join(o, "record.json"))
			return fmt.Errorf("object %s is left: %s", o, b)
		}
		return x.engine.left()
	})
}

// objects are the files of those on the host.
func (x *table) objects(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(x.state, "objects", "*"))
	must.NoError(t, err)
	return found
}
