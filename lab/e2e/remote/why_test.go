// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/nomad"
)

const management = "7d2f0f0e-6f0c-4b57-9d0b-7c7f2f2f9a11"

// mkdir makes a directory that every user reaches.
func mkdir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "w")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// world is a cluster with access control, and the token files of a plugin.
type world struct {
	*agent.Cluster
	dir string
}

func newWorld(t *testing.T, dir string, clients ...agent.Options) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	nomadBinary, err := nomad.Binary(ctx, t.Logf)
	must.NoError(t, err)
	c, err := agent.RunCluster(ctx, agent.ClusterOptions{
		Dir: filepath.Join(dir, "c"), Quick: true, Token: management,
		Server:  agent.Options{ServerOnly: true, Name: "server", Binary: nomadBinary.Path, Progress: t.Logf},
		Clients: clients,
	})
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, c.Close(context.Background())) })
	w := &world{Cluster: c, dir: dir}
	_, err = w.api().ACLPolicies().Upsert(&api.ACLPolicy{Name: "plugin",
		Rules: `namespace "*" { capabilities = ["read-job"] }
node { policy = "read" }`}, nil)
	must.NoError(t, err)
	_, err = w.api().ACLPolicies().Upsert(&api.ACLPolicy{Name: "jobs",
		Rules: `namespace "*" { capabilities = ["read-job"] }`}, nil)
	must.NoError(t, err)
	_, err = w.api().ACLPolicies().Upsert(&api.ACLPolicy{Name: "nodes", Rules: `node { policy = "read" }`}, nil)
	must.NoError(t, err)
	_, err = w.api().ACLPolicies().Upsert(&api.ACLPolicy{Name: "one",
		Rules: `namespace "default" { capabilities = ["read-job"] }`}, nil)
	must.NoError(t, err)
	for _, policy := range []string{"plugin", "jobs", "nodes", "one"} {
		token, _, err := w.api().ACLTokens().Create(&api.ACLToken{Type: "client", Policies: []string{policy}}, nil)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(w.token(policy), []byte(token.SecretID+"\n"), 0o600))
	}
	must.NoError(t, os.WriteFile(w.token("wrong"), []byte("11111111-6f0c-4b57-9d0b-7c7f2f2f9a11"), 0o600))
	return w
}

func (w *world) api() *api.Client           { return w.Server.Client() }
func (w *world) token(policy string) string { return filepath.Join(w.dir, policy) }

// node is the id of a client's.
func (w *world) node(client int) string { return agent.NodeID(w.Clients[client]) }

// submit runs a job whose task takes 6 s to stop, on one client (from 0) or any (-1). Its identity may read jobs.
func (w *world) submit(t *testing.T, kind, id string, client int, edit ...func(*api.Job)) {
	t.Helper()
	w.register(t, kind, id, client, edit...)
	_, err := w.api().ACLPolicies().Upsert(&api.ACLPolicy{Name: id, Rules: `namespace "default" { policy = "read" }`,
		JobACL: &api.JobACL{Namespace: "default", JobID: id}}, nil)
	must.NoError(t, err)
}

func (w *world) register(t *testing.T, kind, id string, client int, edit ...func(*api.Job)) {
	t.Helper()
	task := api.NewTask("main", "raw_exec").SetConfig("command", "/bin/sh").
		SetConfig("args", []string{"-c", `trap "" INT TERM; while :; do sleep 1; done`}).
		Require(&api.Resources{CPU: new(10), MemoryMB: new(10)})
	task.KillTimeout = new(6 * time.Second)
	task.Identity = &api.WorkloadIdentity{Env: true, File: true}
	group := api.NewTaskGroup("g", 1).AddTask(task)
	job := api.NewServiceJob(id, id, "global", 50)
	job.Type = new(kind)
	if kind == "service" {
		group.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Duration(0)), HealthyDeadline: new(time.Minute),
			ProgressDeadline: new(2 * time.Minute), HealthCheck: new("task_states")}
	}
	if client >= 0 {
		job.Constrain(api.NewConstraint("${node.unique.id}", "=", w.node(client)))
	}
	job.AddTaskGroup(group)
	for _, f := range edit {
		f(job)
	}
	_, _, err := w.api().Jobs().Register(job, nil)
	must.NoError(t, err)
}

// found waits for an allocation of a job.
func (w *world) found(t *testing.T, job, what string, is func(*api.Allocation) bool) (alloc *api.Allocation) {
	t.Helper()
	testsupport.Eventually(t, "an allocation of "+job+" "+what, func() bool {
		list, _, err := w.api().Jobs().Allocations(job, true, nil)
		if err != nil {
			return false
		}
		for _, stub := range list {
			a, _, err := w.api().Allocations().Info(stub.ID, nil)
			if err == nil && is(a) {
				alloc = a
				return true
			}
		}
		return false
	})
	return alloc
}

func (w *world) running(t *testing.T, job string) *api.Allocation {
	t.Helper()
	return w.found(t, job, "runs", func(a *api.Allocation) bool {
		return a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun
	})
}

// answer is that of command ask.
type answer struct {
	Decision struct{ Action, Reason string }
	Took     time.Duration
	Owner    struct {
		State, Job           string
		Lost, Wanted, Canary bool
		Told, Stopped        bool
	}
	Orphan bool
	Why    string
	Sight  struct {
		All        bool
		Namespaces []string
		Reason     string
	}
}

// column is what a plugin has to ask with.
type column string

const (
	byToken    column = "the plugin's token"
	byIdentity column = "the identity"
	bySocket   column = "the identity over the Task API"
	byNothing  column = "nothing"
)

type conf = map[string]any

func (w *world) ask(t *testing.T, a *api.Allocation, by column, more ...string) answer {
	t.Helper()
	on := w.of(a)
	// that of the plugin beside the task, and the server's where that agent is down
	options := conf{"Addresses": []string{on.Address(), w.Server.Address()}}
	asker := conf{"namespace": "default", "job": a.JobID, "alloc": a.ID, "task": "main"}
	secrets := filepath.Join(on.DataDir(), "alloc", a.ID, "main", "secrets")
	switch by {
	case byToken:
		options["TokenFile"] = w.token("plugin")
	case byIdentity:
		asker["secrets"] = secrets
	case bySocket:
		options["Addresses"] = []string{"http://127.0.0.1:1"}
		asker["secrets"] = secrets
	}
	record := conf{"key": conf{"region": "global", "namespace": "default", "job": a.JobID, "group": "g", "task": "main",
		"index": index(t, a)}, "owner": conf{"alloc": a.ID, "node": a.NodeID}}
	question := conf{"Options": options, "Asker": asker, "Record": record}
	for _, m := range more {
		question[m] = true
	}
	return w.put(t, question)
}

// of is the client that an allocation is on.
func (w *world) of(a *api.Allocation) agent.Agent {
	for i, c := range w.Clients {
		if w.node(i) == a.NodeID {
			return c
		}
	}
	return nil
}

func index(t *testing.T, a *api.Allocation) (n int) {
	t.Helper()
	_, err := fmt.Sscanf(a.Name[strings.LastIndex(a.Name, "["):], "[%d]", &n)
	must.NoError(t, err)
	return n
}

func (w *world) put(t *testing.T, question conf) (got answer) {
	t.Helper()
	in, err := json.Marshal(question)
	must.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), ask)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Env = append(os.Environ(), "NOMAD_TOKEN="+management, "NOMAD_ADDR=http://127.0.0.1:2") // not for it
	out, err := cmd.Output()
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(out, &got))
	return got
}

// expect asks in columns.
func (w *world) expect(t *testing.T, row string, a *api.Allocation, want map[column]string) (got answer) {
	t.Helper()
	for _, by := range []column{byNothing, bySocket, byIdentity, byToken} {
		action, asked := want[by]
		if by == byNothing && !asked {
			action = "release"
		} else if !asked {
			continue
		}
		got = w.ask(t, a, by)
		now, _, err := w.api().Allocations().Info(a.ID, nil)
		if err == nil {
			d := now.DesiredTransition
			t.Logf("%-28s %-24s -> %s: %s | %s/%s %q migrate %v reschedule %v delay %v noplace %v", row, by,
				got.Decision.Action, got.Decision.Reason, now.DesiredStatus, now.ClientStatus, now.DesiredDescription,
				d.Migrate != nil, d.Reschedule != nil, d.NoShutdownDelay != nil, d.MigrateDisablePlacement != nil)
		} else {
			t.Logf("%-28s %-24s -> %s: %s", row, by, got.Decision.Action, got.Decision.Reason)
		}
		test.Eq(t, action, got.Decision.Action, test.Sprintf("%s, by %s: %s", row, by, got.Decision.Reason))
		test.Less(t, 2500*time.Millisecond, got.Took, test.Sprintf("%s, by %s", row, by))
	}
	return got // by the token
}

func all(action string) map[column]string {
	return map[column]string{byToken: action, byIdentity: action, bySocket: action}
}

// stopping waits until the servers want an allocation's end.
func (w *world) stopping(t *testing.T, a *api.Allocation) *api.Allocation {
	t.Helper()
	return w.found(t, a.JobID, "is to end", func(b *api.Allocation) bool {
		return b.ID == a.ID && b.DesiredStatus != api.AllocDesiredStatusRun
	})
}

// memory is what a node has, in MiB.
func (w *world) memory(t *testing.T, client int) int {
	t.Helper()
	n, _, err := w.api().Nodes().Info(w.node(client), nil)
	must.NoError(t, err)
	return int(n.NodeResources.Memory.MemoryMB)
}

func scheduler(t *testing.T, c *api.Client, change func(*api.SchedulerConfiguration)) {
	t.Helper()
	got, _, err := c.Operator().SchedulerGetConfiguration(nil)
	must.NoError(t, err)
	change(got.SchedulerConfig)
	_, _, err = c.Operator().SchedulerSetConfiguration(got.SchedulerConfig, nil)
	must.NoError(t, err)
}

// TestWhy_IsWhatNomadSays makes each reason of a stop with tasks of raw_exec that take their time to stop, and asks
// meanwhile.
func TestWhy_IsWhatNomadSays(t *testing.T) {
	w := newWorld(t, mkdir(t), make([]agent.Options, 2)...)
	t.Run("tokens", w.tokens)
	t.Run("jobs", w.jobs)
	t.Run("drain", w.drain)
	t.Run("lost", w.lost)
	t.Run("cut off", w.cutOff)
}

func (w *world) jobs(t *testing.T) {
	c := w.api()
	scheduler(t, c, func(s *api.SchedulerConfiguration) { s.PreemptionConfig.ServiceSchedulerEnabled = true })

	simple := []string{"restart", "stop", "jobstop", "purge", "update", "scale", "preempt"}
	for _, id := range simple {
		w.submit(t, "service", id, 0, func(j *api.Job) {
			switch id {
			case "scale":
				j.TaskGroups[0].Count = new(2)
			case "preempt":
				j.Priority = new(10)
				j.TaskGroups[0].Tasks[0].Resources.MemoryMB = new(w.memory(t, 0) * 6 / 10)
			}
		})
	}
	w.register(t, "service", "bare", 0) // an identity without a policy
	bare := w.running(t, "bare")
	got := w.ask(t, bare, byIdentity)
	test.Eq(t, "release", got.Decision.Action)
	test.Eq(t, "", got.Owner.State)
	test.StrContains(t, got.Decision.Reason, "with the task's identity: Nomad does not show it to this token")

	allocs := map[string]*api.Allocation{}
	for _, id := range simple {
		allocs[id] = w.running(t, id)
	}
	got = w.ask(t, allocs["stop"], byToken)
	test.Eq(t, "alive", got.Owner.State)
	test.Eq(t, "service", got.Owner.Job)
	test.False(t, got.Orphan, test.Sprint(got.Why))

	must.NoError(t, c.Allocations().Restart(allocs["restart"], "", nil))
	got = w.expect(t, "restart", allocs["restart"], all("stop"))
	test.False(t, got.Owner.Stopped)

	_, err := c.Allocations().Stop(allocs["stop"], nil)
	must.NoError(t, err)
	w.stopping(t, allocs["stop"])
	got = w.expect(t, "alloc stop", allocs["stop"], all("stop"))
	test.True(t, got.Owner.Stopped, test.Sprint("its replacement starts anew"))

	_, _, err = c.Jobs().Deregister("jobstop", false, nil)
	must.NoError(t, err)
	w.stopping(t, allocs["jobstop"])
	got = w.expect(t, "job stop", allocs["jobstop"], all("stop"))
	test.True(t, got.Orphan, test.Sprint(got.Why))

	_, _, err = c.Jobs().Deregister("purge", true, nil)
	must.NoError(t, err)
	testsupport.Eventually(t, "the job is purged", func() bool {
		_, _, err := c.Jobs().Info("purge", nil)
		return err != nil
	})
	// an identity goes with its allocation
	got = w.expect(t, "job stop -purge", allocs["purge"], map[column]string{byToken: "stop", byIdentity: "release"})
	test.True(t, got.Orphan, test.Sprint(got.Why))

	w.submit(t, "service", "update", 0, func(j *api.Job) { j.TaskGroups[0].Tasks[0].Env = map[string]string{"V": "2"} })
	w.stopping(t, allocs["update"])
	got = w.expect(t, "update", allocs["update"], all("stop"))
	test.True(t, got.Owner.Stopped)

	_, _, err = c.Jobs().Scale("scale", "g", new(1), "", false, nil, nil)
	must.NoError(t, err)
	scaled := w.found(t, "scale", "is scaled down", func(a *api.Allocation) bool {
		return a.DesiredStatus == api.AllocDesiredStatusStop
	})
	got = w.expect(t, "scale down", scaled, all("stop"))
	test.True(t, got.Orphan, test.Sprint(got.Why))

	w.submit(t, "service", "high", 0, func(j *api.Job) {
		j.Priority = new(90)
		j.TaskGroups[0].Tasks[0].Resources.MemoryMB = new(w.memory(t, 0) * 6 / 10)
	})
	w.stopping(t, allocs["preempt"])
	got = w.expect(t, "preemption", allocs["preempt"], all("stop"))
	test.True(t, got.Owner.Stopped)
	for _, id := range append(simple, "high") {
		if id != "jobstop" && id != "purge" {
			w.end(t, id)
		}
	}
}

// end stops a job without a wait.
func (w *world) end(t *testing.T, job string) {
	t.Helper()
	_, _, err := w.api().Jobs().Deregister(job, false, nil)
	must.NoError(t, err)
}

// drain drains client 1 twice.
func (w *world) drain(t *testing.T) {
	for _, d := range []struct {
		name     string
		deadline time.Duration
	}{{"drain", time.Second}, {"forced drain", -1}} {
		jobs := map[string]*api.Allocation{}
		for _, kind := range []string{"service", "batch", "system", "sysbatch"} {
			id := strings.Fields(d.name)[0] + kind
			w.submit(t, kind, id, 1)
			jobs[kind] = w.running(t, id)
		}
		must.NoError(t, agent.Drain(t.Context(), w.api(), w.node(1), d.deadline))
		for _, kind := range []string{"service", "batch", "system", "sysbatch"} {
			w.stopping(t, jobs[kind])
			want := "stop"
			if kind == "service" {
				want = "release"
			}
			got := w.expect(t, d.name+" of a "+kind, jobs[kind], all(want))
			test.Eq(t, kind != "service", got.Orphan, test.Sprintf("%s: %s", kind, got.Why))
			test.False(t, got.Owner.Stopped, test.Sprint(kind))
		}
		for _, a := range jobs {
			w.end(t, a.JobID)
		}
		must.NoError(t, agent.Undrain(t.Context(), w.api(), w.node(1)))
	}
}

// lost kills client 1 and starts it again.
func (w *world) lost(t *testing.T) {
	ctx := t.Context()
	original := w.disconnect("keep_original")
	replacement := w.disconnect("keep_replacement")
	w.submit(t, "service", "lost", 1)
	w.submit(t, "batch", "lostbatch", 1)
	w.eligible(t, 0, false)
	w.submit(t, "service", "original", -1, original)
	w.submit(t, "service", "replacement", -1, replacement)
	before := map[string]*api.Allocation{}
	for _, id := range []string{"lost", "lostbatch", "original", "replacement"} {
		before[id] = w.running(t, id)
	}
	w.eligible(t, 0, true)

	must.NoError(t, w.Clients[1].Kill(ctx))
	w.stopping(t, before["lost"])
	// an identity ends with its allocation
	w.expect(t, "lost", before["lost"], map[column]string{byToken: "not mine", byIdentity: "release"})
	w.expect(t, "lost, of a batch", before["lostbatch"], map[column]string{byToken: "not mine", byIdentity: "release"})
	got := w.ask(t, before["lost"], byToken)
	test.Eq(t, "ended", got.Owner.State)
	test.True(t, got.Owner.Lost)
	w.found(t, "original", "is unknown", func(a *api.Allocation) bool { return a.ClientStatus == "unknown" })
	got = w.ask(t, before["original"], byToken)
	test.Eq(t, "disconnected", got.Owner.State)
	second := w.found(t, "original", "replaces it", func(a *api.Allocation) bool {
		return a.ID != before["original"].ID && a.ClientStatus == api.AllocClientStatusRunning
	})
	w.found(t, "replacement", "replaces it", func(a *api.Allocation) bool {
		return a.ID != before["replacement"].ID && a.ClientStatus == api.AllocClientStatusRunning
	})

	must.NoError(t, w.Clients[1].Start(ctx))
	_, err := agent.WaitHealthy(ctx, w.Clients[1])
	must.NoError(t, err)
	w.stopping(t, second)
	w.expect(t, "reconnect, replacement loses", second, all("release"))
	w.stopping(t, before["replacement"])
	w.expect(t, "reconnect, original loses", before["replacement"], all("release"))
	// Its client status is running again. Its agent opens the Task API again only if the servers are slower than it to
	// have it end the allocation.
	w.expect(t, "lost, and back", before["lost"], map[column]string{byToken: "not mine", byIdentity: "not mine"})
	got = w.ask(t, before["lost"], byToken)
	test.Eq(t, "ended", got.Owner.State)
	test.True(t, got.Owner.Lost)

	w.end(t, "lost")
	w.found(t, "lost", "is of a stopped job", func(*api.Allocation) bool {
		j, _, err := w.api().Jobs().Info("lost", nil)
		return err == nil && *j.Stop
	})
	w.expect(t, "lost, and the job stopped", before["lost"], map[column]string{byToken: "stop", byIdentity: "stop"})
	for _, id := range []string{"lostbatch", "original", "replacement"} {
		w.end(t, id)
	}
}

func (w *world) disconnect(reconcile string) func(*api.Job) {
	return func(j *api.Job) {
		j.TaskGroups[0].Disconnect = &api.DisconnectStrategy{LostAfter: new(time.Hour), Reconcile: new(reconcile)}
	}
}

func (w *world) eligible(t *testing.T, client int, eligible bool) {
	t.Helper()
	_, err := w.api().Nodes().ToggleEligibility(w.node(client), eligible, nil)
	test.NoError(t, err)
}

// cutOff freezes the server until stop_on_client_after ends a task.
func (w *world) cutOff(t *testing.T) {
	w.submit(t, "service", "cut", -1, func(j *api.Job) {
		j.TaskGroups[0].Disconnect = &api.DisconnectStrategy{StopOnClientAfter: new(12 * time.Second)}
		j.TaskGroups[0].Tasks[0].KillTimeout = new(time.Second)
	})
	a := w.running(t, "cut")
	w.expect(t, "before it is cut off", a, all("stop"))
	must.NoError(t, w.Freeze())
	thawed := false
	defer func() {
		if !thawed {
			must.NoError(t, w.Thaw())
		}
	}()
	for _, by := range []column{byToken, byIdentity, bySocket, byNothing} {
		got := w.ask(t, a, by, "Only")
		t.Logf("the server hangs, by %s -> %s: %s in %.1f s", by, got.Decision.Action, got.Decision.Reason,
			got.Took.Seconds())
		test.Eq(t, "release", got.Decision.Action)
		test.Less(t, 2500*time.Millisecond, got.Took)
	}
	testsupport.Eventually(t, "the client has ended it", func() bool {
		_, err := os.Stat(filepath.Join(w.of(a).DataDir(), "alloc", a.ID, "main", "secrets", "nomad_token"))
		return err != nil
	})
	must.NoError(t, w.Thaw())
	thawed = true
	w.found(t, "cut", "was ended by its client", func(b *api.Allocation) bool {
		return b.ID == a.ID && b.ClientStatus != api.AllocClientStatusRunning
	})
	w.expect(t, "after it was cut off", a, map[column]string{})
	w.end(t, "cut")
}

// none is an id that nothing has.
const none = "5d2f0f0e-6f0c-4b57-9d0b-7c7f2f2f9a12"

// tokens asks with each kind of token what it sees.
func (w *world) tokens(t *testing.T) {
	w.register(t, "service", "seen", 0)

	here := w.Clients[0].Address()

	// what another cluster's reaper sees of an object
	for _, tc := range []struct {
		token, alloc, node string
		orphan             bool
		why                string
	}{
		{"plugin", none, w.node(0), true, "its job was purged"},
		{"plugin", none, none, false, "it may be another cluster's"},
		{"plugin", "", "by hand", false, "it may be another cluster's"},
		{"jobs", none, w.node(0), false, "it may be another cluster's"},
		{"nodes", none, w.node(0), false, "does not show it"},
	} {
		got := w.put(t, conf{"Options": conf{"Addresses": []string{here}, "TokenFile": w.token(tc.token)}, "Record": conf{
			"key":   conf{"region": "global", "namespace": "default", "job": "purged", "group": "g", "task": "main"},
			"owner": conf{"alloc": tc.alloc, "node": tc.node}}})
		test.Eq(t, tc.orphan, got.Orphan, test.Sprintf("%+v: %s", tc, got.Why))
		test.StrContains(t, got.Why, tc.why, test.Sprintf("%+v", tc))
	}

	// an identity may read nodes, too
	a := w.running(t, "seen")
	secrets := filepath.Join(w.of(a).DataDir(), "alloc", a.ID, "main", "secrets")
	for _, tc := range []struct{ rules, state string }{
		{"", "foreign"}, {"node { policy = \"read\" }", "not found"},
	} {
		_, err := w.api().ACLPolicies().Upsert(&api.ACLPolicy{Name: "seen", JobACL: &api.JobACL{Namespace: "default",
			JobID: "seen"}, Rules: `namespace "default" { capabilities = ["read-job"] }` + tc.rules}, nil)
		must.NoError(t, err)
		testsupport.Eventually(t, "an identity sees an unknown allocation as "+tc.state, func() bool {
			return tc.state == w.put(t, conf{"Options": conf{"Addresses": []string{here}},
				"Asker":  conf{"namespace": "default", "job": "seen", "task": "main", "secrets": secrets},
				"Record": conf{"owner": conf{"alloc": none, "node": w.node(1)}}}).Owner.State
		})
	}

	at := func(file string, addresses ...string) string {
		if file != "" {
			file = w.token(file)
		}
		got := w.put(t, conf{"Options": conf{"Addresses": addresses, "TokenFile": file}, "Record": conf{
			"key": conf{"region": "global", "namespace": "default", "job": "seen", "group": "g", "task": "main"}}})
		t.Logf("%s: %+v, %s", file, got.Sight, got.Why)
		test.False(t, got.Orphan)
		return got.Sight.Reason
	}
	test.StrContains(t, at("plugin", here), "may read jobs in every namespace")
	test.StrContains(t, at("plugin", "http://127.0.0.1:1", here), "may read jobs in every namespace")
	test.StrContains(t, at("jobs", here), "but no nodes (node:read)")
	test.StrContains(t, at("one", here), "default alone")
	test.StrContains(t, at("nodes", here), "sees no job")
	test.StrContains(t, at("wrong", here), "does not know the token")
	test.StrContains(t, at("", here), "no token_file")
	test.StrContains(t, at("none", here), "no such file")
	test.StrContains(t, at("plugin", "http://127.0.0.1:1"), "is not reached: connect: connection refused")
	w.end(t, "seen")
}
