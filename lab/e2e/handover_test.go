// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// handoverServer configures a server that notices a lost node within some seconds.
const handoverServer = `
server {
  heartbeat_grace   = "2s"
  min_heartbeat_ttl = "3s"
}`

// cluster is a Nomad server and its clients. All clients run their tasks on one remote host.
type cluster struct {
	server     *node
	host       *remoteHost
	containers *containerHost // the host with its container engine; nil: tasks are processes
	nodes      []*node
	links      map[*node]*sshdtest.Link // the nodes' connections to the host
	dir        string                   // for the tasks' files
}

// newCluster starts a cluster. asks returns the Nomad API's address for all plugins; if empty, each asks its own agent.
func newCluster(t *testing.T, clients int, asks func(*cluster) string) *cluster {
	t.Helper()
	c := &cluster{
		host: newRemoteHost(t), server: newNode(t, nodeOptions{config: handoverServer}), dir: mkdir(t),
		links: map[*node]*sshdtest.Link{},
	}
	var links []*sshdtest.Link
	for range clients {
		links = append(links, c.host.server.Link()) // cleaned up after c.end, which is registered later
	}
	t.Cleanup(func() { test.NoError(t, c.end(t)) })
	address := asks(c)
	for i, link := range links {
		o := c.host.options(link.Port, address)
		o.of = c.server
		o.shell = fmt.Sprintf("exec setpriv --regid=%d --keep-groups \"$@\"", firstGroup+i)
		n, err := startNode(fmt.Sprintf("%s-%d", t.Name(), i+1), o)
		must.NoError(t, err)
		c.nodes = append(c.nodes, n)
		c.links[n] = link
	}
	return c
}

// firstGroup is the group ID of the first client, for cutOff. The next clients have the following IDs.
const firstGroup = 54330

// cutOff drops packets from a client to the server until join is called.
func (c *cluster) cutOff(t *testing.T, n *node) (join func()) {
	t.Helper()
	testsupport.NeedPrograms(t, "iptables")
	rule := func(what string) error {
		group, port := firstGroup+slices.Index(c.nodes, n), c.server.Info().RPC
		out, err := exec.Command("iptables", "-w", what, "OUTPUT", "-o", "lo", "-p", "tcp", "--dport", strconv.Itoa(port),
			"-m", "owner", "--gid-owner", strconv.Itoa(group), "-j", "DROP").CombinedOutput()
		if err != nil {
			return fmt.Errorf("failed to run iptables %s: %w: %s", what, err, out)
		}
		return nil
	}
	must.NoError(t, rule("-A"))
	join = sync.OnceFunc(func() { test.NoError(t, rule("-D")) })
	t.Cleanup(join)
	return join
}

func ownAPI(*cluster) string { return "" }

func noAPI(*cluster) string { return "http://127.0.0.1:1" }

// end stops all clients before it looks for leftovers, because the clients share the host's directory. It shows the
// agents' logs if the test has failed, or if tasks or records are left while the clients still run.
func (c *cluster) end(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, n.endTasks())
	}
	errs = append(errs, testsupport.Poll(time.Minute, c.recordsLeft)) // the running agents remove them
	for _, n := range c.nodes {
		if t.Failed() || errors.Join(errs...) != nil {
			n.tellLog(t)
		}
		errs = append(errs, n.Stop(ctx))
	}
	for _, n := range c.nodes {
		errs = append(errs, n.remove(ctx))
	}
	return errors.Join(append(errs, c.recordsLeft())...)
}

func (c *cluster) recordsLeft() error {
	left, _ := filepath.Glob(filepath.Join(c.host.dir, "runs", "*-*[^e]?")) // except *.taken, which is removed later
	var errs []error
	for _, file := range left {
		text, _ := os.ReadFile(file) // a lock file is empty
		errs = append(errs, fmt.Errorf("the host still has the record %s: %s", filepath.Base(file), text))
	}
	return errors.Join(errs...)
}

// becomes waits until the host's record of the run has this state. The state "not there" means that no record exists.
func (s *survivor) becomes(t *testing.T, state string) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		now := "not there"
		records, _ := filepath.Glob(filepath.Join(s.c.host.dir, "runs", "*.json"))
		for _, record := range records {
			text, _ := os.ReadFile(record) // fails if the run has just ended
			var run struct{ Key, State string }
			if json.Unmarshal(text, &run) == nil && strings.Contains(run.Key, `"`+*s.job.ID+`"`) {
				now = run.State
			}
		}
		if now != state {
			return fmt.Errorf("the run is %s", now)
		}
		return nil
	})
}

// absentTime is more than the time after which another allocation can take over the run of an absent owner.
const absentTime = 20 * time.Second

// alone returns how long ago a node last followed the only run. Like the nodes, it measures the age of the file that
// the owner's connection locks. The file's modification time counts from boot (CLOCK_BOOTTIME).
func (h *remoteHost) alone() time.Duration {
	locks, _ := filepath.Glob(filepath.Join(h.dir, "runs", "*.lock"))
	if len(locks) != 1 {
		return 0
	}
	info, err := os.Stat(locks[0])
	if err != nil || info.ModTime().UnixNano() == 0 {
		return 0
	}
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // can't fail
	return time.Duration(now.Nano() - info.ModTime().UnixNano())
}

// survivor is a job whose task first writes its identity into a file, and then counts.
type survivor struct {
	c      *cluster
	job    *api.Job
	log    string // the file with the identities
	script string // run by the shell that becomes the counter
}

func (c *cluster) run(t *testing.T, edit ...func(*api.Job, *api.Task)) *survivor {
	t.Helper()
	s := &survivor{c: c}
	s.job = job(t, nil, onBox)
	s.log = filepath.Join(c.dir, *s.job.ID)
	task := s.job.TaskGroups[0].Tasks[0]
	// no subshell: it would look like a second copy of the task
	s.script = "read -r stat < /proc/$$/stat; set -- $stat; shift 21; echo $$.$1 >> " + s.log + "; exec " + counter +
		" -every 100ms -until " + s.log + ".end"
	task.SetConfig("command", "/bin/sh")
	task.SetConfig("args", []string{"-c", s.script})
	if c.containers != nil {
		c.containers.contain(t, c.server, task, s.script, c.dir, counter)
	}
	task.SetConfig("orphan_timeout", "25s") // longer than the time after which an absent owner loses its run
	s.job.Type = new("service")
	group := s.job.TaskGroups[0]
	group.RestartPolicy = &api.RestartPolicy{
		Attempts: new(10), Mode: new("delay"), Interval: new(time.Minute), Delay: new(time.Second),
	}
	group.ReschedulePolicy = &api.ReschedulePolicy{
		Unlimited: new(true), Delay: new(5 * time.Second), DelayFunction: new("constant"),
	}
	group.Migrate = migrate()
	s.job.Constrain(api.NewConstraint("${attr.driver.remote.endpoint.box.healthy}", "=", "true"))
	for _, e := range edit {
		e(s.job, task)
	}
	s.register(t)
	s.on(t)
	return s
}

// migrate returns a strategy for drains. A new task counts as healthy after 1 s, not after the default of 10 s.
func migrate() *api.MigrateStrategy {
	return &api.MigrateStrategy{MaxParallel: new(1), HealthCheck: new("task_states"), MinHealthyTime: new(time.Second),
		HealthyDeadline: new(time.Minute)}
}

func (s *survivor) register(t *testing.T) {
	t.Helper()
	_, _, err := s.c.server.Client().Jobs().Register(s.job, nil)
	must.NoError(t, err)
}

// alloc returns the newest allocation whose desired status is "run", and its node.
func (s *survivor) alloc() (*api.AllocationListStub, *node, error) {
	list, _, err := s.c.server.Client().Jobs().Allocations(*s.job.ID, true, nil)
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(list, func(a, b *api.AllocationListStub) int { return cmp.Compare(b.CreateIndex, a.CreateIndex) })
	for _, a := range list {
		if a.DesiredStatus != "run" {
			continue
		}
		for _, n := range s.c.nodes {
			if n.id() == a.NodeID {
				return a, n, nil
			}
		}
	}
	return nil, nil, fmt.Errorf("job %s has no allocation with the desired status run", *s.job.ID)
}

// on waits until Nomad reports that the task runs, on a node that is not in the list not.
func (s *survivor) on(t *testing.T, not ...*node) (alloc *api.AllocationListStub, where *node) {
	t.Helper()
	testsupport.Within(t, 3*time.Minute, func() error {
		a, n, err := s.alloc()
		if err != nil {
			return err
		}
		if state := a.TaskStates["main"]; state == nil || state.State != "running" || a.ClientStatus != "running" {
			return fmt.Errorf("%s is %s: %s", a.Name, a.ClientStatus, s.story())
		}
		if slices.Contains(not, n) {
			return fmt.Errorf("the task is still on a node that it should leave: %s", s.story())
		}
		alloc, where = a, n
		return nil
	})
	return alloc, where
}

// current is like on, but returns the allocation as an alloc.
func (s *survivor) current(t *testing.T, not ...*node) *alloc {
	t.Helper()
	a, n := s.on(t, not...)
	return &alloc{n: n, id: a.ID, job: *s.job.ID}
}

// story returns the events of the task in all allocations.
func (s *survivor) story() string {
	list, _, err := s.c.server.Client().Jobs().Allocations(*s.job.ID, true, nil)
	if err != nil {
		return err.Error()
	}
	var said []string
	for _, a := range list {
		said = append(said, fmt.Sprintf("%s on %.8s is %s", a.ID, a.NodeID, a.ClientStatus))
		if state := a.TaskStates["main"]; state != nil {
			said = append(said, nomadtest.Story(state))
		}
	}
	return strings.Join(said, " | ")
}

// starts returns an identity for each process that the task has had: the PID in its own namespace, and the start time.
func (s *survivor) starts() []string {
	text, _ := os.ReadFile(s.log)
	return strings.Fields(string(text))
}

// alive returns the identities of the task's live processes: the shell, or the counter that it becomes.
func (s *survivor) alive() (found []string) {
	for _, pid := range testsupport.Processes(func(args []string) bool {
		shell := len(args) > 2 && args[1] == "-c" && args[2] == s.script
		return shell || args[0] == counter && slices.Contains(args, s.log+".end")
	}) {
		p, err := readProc(pid)
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // fails if the process has ended
		_, ids, _ := strings.Cut(string(status), "\nNSpid:")
		ids, _, _ = strings.Cut(ids, "\n")
		pids := strings.Fields(ids)
		if err == nil && len(pids) > 0 {
			found = append(found, fmt.Sprintf("%s.%d", pids[len(pids)-1], p.start))
		}
	}
	return found
}

// watch fails the test if two copies of the task run at the same time before stop is called.
func (s *survivor) watch(t *testing.T) (stop func()) {
	done, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			if alive := s.alive(); len(alive) > 1 {
				t.Errorf("%d copies run: %v", len(alive), alive)
				return
			}
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() {
		close(done)
		<-over
	}
}

// goesOn checks that the task was started only once, and that its process is alive and prints.
func (s *survivor) goesOn(t *testing.T) {
	t.Helper()
	must.SliceLen(t, 1, s.starts(), must.Sprint(s.story()))
	must.Eq(t, s.starts(), s.alive(), must.Sprint(s.story()))
	log := s.current(t)
	log.says(t, "stdout", "line 0 ") // the whole output is copied to the new allocation
	log.printsOn(t, len(log.output(t, "stdout")), 100)
}

// started waits until the task has been started this many times, and only the last of its processes is alive.
func (s *survivor) started(t *testing.T, times int) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		if starts := s.starts(); len(starts) != times || !slices.Equal(s.alive(), starts[times-1:]) {
			return fmt.Errorf("started %v, alive %v: %s", starts, s.alive(), s.story())
		}
		return nil
	})
}

// isGone waits until no process of the task is alive.
func (s *survivor) isGone(t *testing.T) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		if alive := s.alive(); len(alive) > 0 {
			return fmt.Errorf("alive: %v", alive)
		}
		return nil
	})
}

// leaves waits until Nomad reports no allocation as running on a node.
func (s *survivor) leaves(t *testing.T, n *node) {
	t.Helper()
	testsupport.Within(t, patience, func() error {
		if story := s.story(); strings.Contains(story, "on "+n.id()[:8]+" is running") {
			return errors.New(story)
		}
		return nil
	})
}

// outlasts checks that a task survives while its agent has no contact with the server, but its plugin is still
// connected to the host. goOn restores the contact with the server.
func (s *survivor) outlasts(t *testing.T, first *node, hasAPI bool, goOn func()) {
	t.Helper()
	if hasAPI {
		s.on(t, first)
		s.goesOn(t)
	} else {
		s.tells(t, "Waiting for allocation ")
	}
	goOn()
	s.on(t)
	s.goesOn(t)
	if hasAPI {
		s.leaves(t, first)
	}
}

// tells waits until an event of any allocation contains text.
func (s *survivor) tells(t *testing.T, text string) {
	t.Helper()
	testsupport.Within(t, patience, func() error {
		if story := s.story(); !strings.Contains(story, text) {
			return fmt.Errorf("no event has %q: %s", text, story)
		}
		return nil
	})
}

// handover is an event that happens to a running task, with checks of its process.
type handover struct {
	name  string
	long  bool // not in the quick tests
	also  bool // also run with containers
	batch bool
	edit  func(group *api.TaskGroup, task *api.Task)

	strike func(t *testing.T, c *cluster, s *survivor, first *node, hasAPI bool)
}

var handovers = []handover{
	{name: "drain", also: true, edit: func(_ *api.TaskGroup, task *api.Task) {
		task.Templates = []*api.Template{
			{EmbeddedTmpl: new(`{{ env "NOMAD_ALLOC_ID" }}`), DestPath: new("secrets/alloc")},
			{EmbeddedTmpl: new(`{{ env "NOMAD_ALLOC_ID" }}`), DestPath: new("local/alloc")},
		}
	}, strike: func(t *testing.T, c *cluster, s *survivor, first *node, hasAPI bool) {
		before, _, err := s.alloc()
		must.NoError(t, err)
		begun := time.Now()
		first.drain(t, time.Hour)
		after, _ := s.on(t, first)
		t.Logf("handed over %.1f s after the drain: %s", time.Since(begun).Seconds(), s.story())
		s.goesOn(t)
		of := &api.Allocation{ID: after.ID}
		must.NoError(t, c.server.Client().Allocations().Signal(of, nil, "main", "SIGURG")) // the counter ignores SIGURG
		for name, want := range map[string]string{"secrets/alloc": after.ID, "local/alloc": before.ID} {
			got, err := os.ReadFile(filepath.Join(c.host.dir, "allocs", before.ID, "main", name))
			must.NoError(t, err)
			must.Eq(t, want, string(got), must.Sprint(name))
		}
		s.tells(t, "Took over the running task of allocation ")
		if hasAPI {
			s.tells(t, "the node is drained")
		}
		first.eligible(t)
	}},
	{name: "alloc stop", also: true, strike: func(t *testing.T, c *cluster, s *survivor, _ *node, hasAPI bool) {
		a, _, err := s.alloc()
		must.NoError(t, err)
		_, err = c.server.Client().Allocations().Stop(&api.Allocation{ID: a.ID}, nil)
		must.NoError(t, err)
		if hasAPI {
			s.started(t, 2)
			return
		}
		s.tells(t, "failed to find out why Nomad ends the task on this node")
		s.tells(t, "Took over the running task of allocation "+a.ID)
		s.goesOn(t)
	}},
	{name: "job stop -purge", also: true, strike: func(t *testing.T, c *cluster, s *survivor, _ *node, _ bool) {
		_, _, err := c.server.Client().Jobs().Deregister(*s.job.ID, true, nil)
		must.NoError(t, err)
		s.isGone(t) // without an API, this takes orphan_timeout
		must.SliceLen(t, 1, s.starts())
	}},
	{name: "agent killed with on_lost restart", long: true,
		edit: func(_ *api.TaskGroup, task *api.Task) { task.SetConfig("on_lost", "restart") },
		strike: func(t *testing.T, _ *cluster, s *survivor, first *node, _ bool) {
			kill(t, first)
			s.on(t, first)
			s.started(t, 2)
			first.restart(t)
			s.started(t, 2)
		}},
	{name: "alloc restart", long: true, strike: func(t *testing.T, c *cluster, s *survivor, _ *node, _ bool) {
		a, n, err := s.alloc()
		must.NoError(t, err)
		must.NoError(t, n.Client().Allocations().Restart(&api.Allocation{ID: a.ID}, "main", nil))
		s.started(t, 2)
	}},
	{name: "update", long: true, strike: func(t *testing.T, _ *cluster, s *survivor, _ *node, _ bool) {
		task := s.job.TaskGroups[0].Tasks[0]
		if task.Env == nil {
			task.Env = map[string]string{}
		}
		task.Env["VERSION"] = "2"
		s.register(t)
		s.started(t, 2)
	}},
	{name: "drain with no other node", long: true,
		strike: func(t *testing.T, c *cluster, s *survivor, first *node, _ bool) {
			for _, n := range c.nodes {
				n.drain(t, time.Hour)
			}
			s.tells(t, "The task is left running on endpoint")
			testsupport.Within(t, time.Minute, func() error {
				if a, _, err := s.alloc(); err == nil {
					return fmt.Errorf("allocation %s still has the desired status run", a.ID)
				}
				return nil
			})
			must.Eq(t, s.starts(), s.alive())
			for _, n := range c.nodes {
				n.eligible(t)
			}
			s.on(t)
			s.goesOn(t)
		}},
	{name: "drain of a batch job", long: true, batch: true,
		strike: func(t *testing.T, _ *cluster, s *survivor, first *node, _ bool) {
			first.drain(t, -1)
			s.isGone(t)
			must.SliceLen(t, 1, s.starts())
			first.eligible(t)
		}},
	{name: "agent killed and restarted", long: true, also: true,
		strike: func(t *testing.T, _ *cluster, s *survivor, first *node, _ bool) {
			begun := time.Now()
			kill(t, first)
			a, second := s.on(t, first)
			t.Logf("handed over %.1f s after the kill: %s", time.Since(begun).Seconds(), s.story())
			s.goesOn(t)
			first.restart(t) // the agent ends its old allocation, because another one has the task now
			s.tells(t, "Allocation "+a.ID+" has taken over the task")
			s.leaves(t, first)
			_, still := s.on(t)
			must.Eq(t, second, still)
			s.goesOn(t)
		}},
	{name: "agent back before the server, after the task has ended on another node", long: true, batch: true,
		strike: func(t *testing.T, c *cluster, s *survivor, first *node, _ bool) {
			kill(t, first)
			s.on(t, first)
			s.goesOn(t)
			must.NoError(t, os.WriteFile(s.log+".end", nil, 0o644))
			s.becomes(t, "not there")
			resume := c.server.process(t).pause(t)
			defer resume()
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
			defer cancel()
			must.NoError(t, first.Start(ctx))
			testsupport.Within(t, time.Minute, func() error { // the agent tries to restart the task that it reports as lost
				if !strings.Contains(first.log(), "Waiting for allocation ") && len(s.starts()) == 1 {
					return errors.New("the agent has not tried to start the task")
				}
				return nil
			})
			resume()
			err := agent.WaitHealthy(ctx, first.Agent)
			must.NoError(t, err)
			must.SliceLen(t, 1, s.starts(), must.Sprint(s.story()))
		}},
	{name: "server away for more than stop_on_client_after", long: true,
		edit: func(group *api.TaskGroup, _ *api.Task) {
			group.Disconnect = &api.DisconnectStrategy{StopOnClientAfter: new(5 * time.Second)}
		},
		strike: func(t *testing.T, c *cluster, s *survivor, _ *node, _ bool) {
			resume := c.server.process(t).pause(t)
			defer resume()
			s.becomes(t, "released") // the client stops the task, and the plugin can't ask the server why
			resume()
			must.Eq(t, s.starts(), s.alive())
			s.tells(t, "Took over the running task of allocation ")
			s.goesOn(t)
		}},
	{name: "agent hangs", long: true,
		strike: func(t *testing.T, _ *cluster, s *survivor, first *node, hasAPI bool) {
			resume := first.process(t).pause(t)
			defer resume()
			s.outlasts(t, first, hasAPI, resume)
		}},
	{name: "agent cut off from the server", long: true,
		strike: func(t *testing.T, c *cluster, s *survivor, first *node, hasAPI bool) {
			s.outlasts(t, first, hasAPI, c.cutOff(t, first))
		}},
	{name: "drain of a node that is cut off from the host", long: true,
		strike: func(t *testing.T, c *cluster, s *survivor, first *node, _ bool) {
			c.links[first].Cut()
			first.drain(t, time.Hour)
			s.on(t, first) // without an API, this takes until the owner counts as absent
			s.goesOn(t)
			c.links[first].Restore()
			first.eligible(t)
			s.goesOn(t)
		}},
	{name: "link down for longer than an owner may be away", long: true, also: true,
		edit: func(_ *api.TaskGroup, task *api.Task) {
			task.SetConfig("orphan_timeout", "75s") // longer than the link is down
		},
		strike: func(t *testing.T, c *cluster, s *survivor, first *node, _ bool) {
			before, _, err := s.alloc()
			must.NoError(t, err)
			c.links[first].Cut()
			testsupport.Within(t, 3*time.Minute, func() error {
				if alone := c.host.alone(); alone < absentTime {
					return fmt.Errorf("no node has followed the run for %v", alone)
				}
				return nil
			})
			c.links[first].Restore()
			s.tells(t, "Connected to endpoint")
			s.goesOn(t)
			after, _, err := s.alloc()
			must.NoError(t, err)
			must.Eq(t, before.ID, after.ID)
		}},
}

// TestHandover_TaskContinuesAsOneProcessOrEnds runs the table handovers for processes, with and without an API. Some
// rows also run for containers, which the driver hands over in the same way.
func TestHandover_TaskContinuesAsOneProcessOrEnds(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	for name, in := range map[string]struct {
		asks       func(*cluster) string
		containers func(*testing.T, *remoteHost) *containerHost
	}{
		"with the API":           {asks: ownAPI},
		"without an API":         {asks: noAPI},
		"podman, with the API":   {asks: ownAPI, containers: newPodmanHost},
		"podman, without an API": {asks: noAPI, containers: newPodmanHost},
		"Docker, with the API":   {asks: ownAPI, containers: dockerContainers},
		"Docker, without an API": {asks: noAPI, containers: dockerContainers},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hasAPI := in.asks(nil) == ""
			if !hasAPI || in.containers != nil {
				testsupport.Long(t, "the table without an API, or with containers")
			}
			clients := 3
			if testing.Short() {
				clients = 2
			}
			c := newCluster(t, clients, func(c *cluster) string {
				if in.containers != nil {
					c.containers = in.containers(t, c.host)
				}
				return in.asks(c)
			})
			for _, h := range handovers {
				if in.containers != nil && !h.also {
					continue
				}
				t.Run(h.name, func(t *testing.T) {
					if h.long {
						testsupport.Long(t, "lost nodes, and other long rows")
					}
					s := c.run(t, func(j *api.Job, task *api.Task) {
						if h.edit != nil {
							h.edit(j.TaskGroups[0], task)
						}
						if h.batch {
							j.Type, j.TaskGroups[0].ReschedulePolicy, j.TaskGroups[0].Migrate = new("batch"), nil, nil
						}
					})
					s.started(t, 1)
					unwatch := s.watch(t)
					defer unwatch()
					_, first := s.on(t)
					defer func() {
						_, _, err := c.server.Client().Jobs().Deregister(*s.job.ID, true, nil)
						must.NoError(t, err)
						s.isGone(t)
						testsupport.Within(t, 2*time.Minute, c.recordsLeft)
					}()
					h.strike(t, c, s, first, hasAPI)
				})
			}
		})
	}
}

// After five drains, the last allocation has the output from the first line to the last.
func TestHandover_OutputIsWholeAfterFiveDrains(t *testing.T) {
	needRootAgent(t)
	testsupport.Long(t, "five hand-overs")
	t.Parallel()
	c := newCluster(t, 2, ownAPI)
	const lines = 100_000
	s := c.run(t, func(_ *api.Job, task *api.Task) {
		script := fmt.Sprintf("%s -lines %d -burst 50 -every 25ms; exec sleep 1000", counter, lines)
		task.SetConfig("args", []string{"-c", script})
	})
	for range 5 {
		_, from := s.on(t)
		begun := time.Now()
		from.drain(t, time.Hour)
		s.on(t, from)
		t.Logf("handed over in %.1f s", time.Since(begun).Seconds())
		from.eligible(t)
	}
	log := s.current(t)
	log.says(t, "stdout", fmt.Sprintf("last %d\n", lines))
	got, _, err := numbered(log.output(t, "stdout"))
	must.NoError(t, err)
	must.Eq(t, lines, got)
}

// A job is stopped while the plugin can't ask Nomad for the reason of the stop. The run goes on until Nomad answers.
func TestHandover_RunOfAStoppedJobEnds(t *testing.T) {
	needRootAgent(t)
	testsupport.Long(t, "the plugin asks again every half minute")
	t.Parallel()
	var away atomic.Bool
	c := newCluster(t, 1, func(c *cluster) string {
		to, err := url.Parse(c.server.Address())
		must.NoError(t, err)
		proxy := httputil.NewSingleHostReverseProxy(to)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if away.Load() {
				http.Error(w, "No cluster leader", http.StatusInternalServerError)
				return
			}
			proxy.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		return server.URL
	})
	s := c.run(t, func(_ *api.Job, task *api.Task) { task.SetConfig("orphan_timeout", "24h") })
	s.started(t, 1)
	away.Store(true)
	nomadtest.Stop(t, c.server.Client(), *s.job.ID)
	s.tells(t, "failed to find out why Nomad ends the task on this node")
	must.Eq(t, s.starts(), s.alive())
	away.Store(false)
	s.isGone(t)
}
