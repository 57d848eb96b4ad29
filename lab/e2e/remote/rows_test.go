// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// TestTable_OfDecisions is what becomes of a task that runs elsewhere, by what happens to its job or its node, and by
// what its plugin can ask Nomad. Columns run at the same time, on clients of their own of one cluster.
//
// Without an answer a task is released: where another allocation of its name comes, it is taken over, and elsewhere
// orphan_timeout ends it. It is never started twice.
func TestTable_OfDecisions(t *testing.T) {
	x := newTable(t, token, identity, noAPI, hangs)
	t.Run("engine", func(t *testing.T) {
		if len(x.kinds) == 1 {
			t.Skip("no Docker engine answers")
		}
	})
	stages := map[string]func(*table, *testing.T){
		"jobs": (*table).jobs, "preemption": (*table).preemption, "drain": (*table).drain,
		"forced drain": (*table).forcedDrain, "drain with no other node": (*table).drainOfAll,
		"agent restart": (*table).restart, "lost node": (*table).lost, "lost node without another": (*table).lostAlone,
		"cut off": (*table).cutOff, "cut off alone": (*table).cutOffAlone,
	}
	for i, name := range slices.Sorted(maps.Keys(stages)) {
		t.Run(name, func(t *testing.T) {
			sampled(t, i, len(stages))
			x.only(t, -1)
			stages[name](x, t)
		})
	}
	x.empty(t)
	x.ends(t)
}

// sampled skips the i-th of n rows if it is not in the sample of the seed in OUTRIDER_SAMPLE, which is one row. Without
// a seed all run.
func sampled(t *testing.T, i, n int) {
	t.Helper()
	if seed, ok := testsupport.Seed(t); ok && seed%uint64(n) != uint64(i) {
		t.Skipf("not in the sample of seed %d", seed)
	}
}

// TestTable_Sample is a part of the table that takes half a minute.
func TestTable_Sample(t *testing.T) {
	x := newTable(t, token, hangs)
	list := x.on(t, map[string]func(*api.Job){"sample": func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].SetConfig("orphan_timeout", "8s")
	}})["sample"]
	must.SliceLen(t, len(x.classes), x.objects(t))
	for _, o := range x.objects(t) {
		b, err := os.ReadFile(filepath.Join(o, "record.json"))
		must.NoError(t, err)
		var r struct {
			Key      struct{ Cluster class }
			JobIndex uint64 `json:"job_index"`
		}
		must.NoError(t, json.Unmarshal(b, &r))
		test.Eq(t, r.Key.Cluster.asks(), r.JobIndex > 0, test.Sprint("which job of its name it is: ", string(b)))
	}
	if x.engine != nil {
		must.ErrorContains(t, x.engine.left(), "is left", must.Sprint("it runs"))
	}
	x.each(t, 0, func(client int) error { return agent.Drain(t.Context(), x.api(), x.node(client), 5*time.Second) })
	together(list, func(c *cell) { c.same(t) })
	together(list, func(c *cell) {
		c.finish(t)
		if c.by == token {
			c.gone(t, 0)
		}
	})
	x.empty(t)
	x.ends(t)
}

// jobs are the rows about jobs.
func (x *table) jobs(t *testing.T) {
	c := x.api()
	for _, row := range []struct {
		name string
		job  func(*api.Job)
		act  func(*testing.T, *cell)
	}{
		{"alloc restart", nil, func(t *testing.T, l *cell) {
			a, err := l.placed()
			if err == nil {
				err = c.Allocations().Restart(a, "", nil)
			}
			test.NoError(t, err)
			if l.by.asks() {
				l.fresh(t)
			} else { // released, and taken again by the same allocation
				l.within(t, "is restarted", func() error {
					a, err := l.placed()
					if err == nil && a.TaskStates["main"].Restarts == 0 {
						return errors.New("not yet")
					}
					return err
				})
				l.same(t, l.alloc)
				l.released(t, "")
			}
		}},
		{"alloc stop", nil, func(t *testing.T, l *cell) {
			_, err := c.Allocations().Stop(&api.Allocation{ID: l.alloc}, nil)
			test.NoError(t, err)
			if l.by.asks() {
				l.fresh(t)
				l.says(t, "Stopping", "the allocation was stopped by hand")
			} else {
				l.same(t)
				l.released(t, "")
			}
		}},
		{"job stop", nil, func(t *testing.T, l *cell) {
			_, _, err := c.Jobs().Deregister(l.job, false, nil)
			test.NoError(t, err)
			l.stopped(t, 0, "the job is stopped")
		}},
		{"job stop -purge", nil, func(t *testing.T, l *cell) {
			_, _, err := c.Jobs().Deregister(l.job, true, nil)
			test.NoError(t, err)
			if l.by == identity { // it ends with its job
				l.says(t, "Released", "the reason of the stop is not known")
				l.gone(t, 0)
			} else {
				l.stopped(t, 0, "the job was purged")
			}
		}},
		{"update", nil, func(t *testing.T, l *cell) {
			l.submit(t)
			l.fresh(t)
		}},
		{"canary", func(j *api.Job) {
			j.TaskGroups[0].Update = &api.UpdateStrategy{Canary: new(1), MinHealthyTime: new(time.Duration(0)),
				HealthyDeadline: new(time.Minute), ProgressDeadline: new(2 * time.Minute), HealthCheck: new("task_states")}
		}, func(t *testing.T, l *cell) { l.canary(t) }},
		{"scale down", func(j *api.Job) { j.TaskGroups[0].Count = new(2) }, func(t *testing.T, l *cell) {
			l.within(t, "runs twice", func() error {
				if n := len(l.look.of(l.n, 1)); n != 1 {
					return fmt.Errorf("%d processes", n)
				}
				return nil
			})
			l.within(t, "is scaled, its deployment being over", func() error {
				_, _, err := c.Jobs().Scale(l.job, "g", new(1), "", false, nil, nil)
				return err
			})
			l.stopped(t, 1, "Nomad says: alloc not needed due to job update")
			l.same(t, l.alloc)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			list := x.cells(t, row.name, row.job)
			together(list, func(l *cell) {
				row.act(t, l)
				l.finish(t)
			})
		})
	}
}

// canary has two versions beside each other until one is promoted. Without an answer nobody knows that the second one
// is a canary: it waits, and says for what.
func (c *cell) canary(t *testing.T) {
	old := c.was
	if c.by.asks() {
		c.look.allow(c.n)
	}
	c.submit(t)
	if !c.by.asks() {
		c.waits(t)
		return
	}
	var second proc
	c.within(t, "has a canary", func() error {
		got := c.look.of(c.n, 0)
		for _, p := range got {
			if p != old {
				second = p
			}
		}
		if len(got) != 2 {
			return fmt.Errorf("%v run", got)
		}
		return nil
	})
	c.within(t, "is promoted", func() error {
		d, _, err := c.api().Jobs().LatestDeployment(c.job, nil)
		if err == nil && d != nil {
			_, _, err = c.api().Deployments().PromoteAll(d.ID, nil)
		}
		return err
	})
	c.within(t, "ends the old version", func() error {
		if got := c.look.of(c.n, 0); len(got) != 1 || got[0] != second {
			return fmt.Errorf("%v run, the canary was %v", got, second)
		}
		return nil
	})
	if n := c.starts(0); n != 2 {
		t.Errorf("%s: started %d times\n%s", c, n, c.story())
	}
}

// waits sees that a start says what it waits for: that the owner's lease ends.
func (c *cell) waits(t *testing.T) {
	t.Helper()
	c.within(t, "says what it waits for", func() error {
		if !strings.Contains(c.story(), "Nomad's API does not tell of allocation") {
			return errors.New("not yet")
		}
		return nil
	})
	c.untouched(t)
}

// preemption is on the last client of each class.
func (x *table) preemption(t *testing.T) {
	scheduler(t, x.api(), func(s *api.SchedulerConfiguration) { s.PreemptionConfig.ServiceSchedulerEnabled = true })
	x.only(t, 2)
	most := x.memory(t, 0) * 6 / 10
	list := x.cells(t, "preemption", func(j *api.Job) {
		j.Priority = new(10)
		j.TaskGroups[0].Tasks[0].Resources.MemoryMB = new(most / len(x.kinds))
	})
	var high []string
	for _, by := range x.classes {
		id := "high-" + string(by)
		x.submit(t, "service", id, x.client(by, 2), func(j *api.Job) {
			j.Priority = new(90)
			j.TaskGroups[0].Tasks[0].Resources.MemoryMB = new(x.memory(t, 0) * 9 / 10) // of all kinds of endpoints
			j.TaskGroups[0].Tasks[0].KillTimeout = new(time.Second)
		})
		high = append(high, id)
	}
	for _, id := range high {
		x.running(t, id)
	}
	together(list, func(c *cell) {
		if c.by.asks() {
			c.stopped(t, 0, "the allocation is preempted")
		} else { // it is wanted, and not placed
			c.untouched(t)
		}
	})
	for _, id := range high {
		x.end(t, id)
	}
	together(list, func(c *cell) {
		if c.by.asks() {
			c.fresh(t)
		} else {
			c.same(t)
		}
		c.finish(t)
	})
}

// on starts rows whose jobs are on the first client of each class, and may go to the others then.
func (x *table) on(t *testing.T, rows map[string]func(*api.Job)) map[string][]*cell {
	t.Helper()
	x.only(t, 0)
	cells := map[string][]*cell{}
	for row, edit := range rows {
		cells[row] = x.cells(t, row, edit)
	}
	x.only(t, -1)
	return cells
}

// option sets one of the task's.
func option(name, value string) func(*api.Job) {
	return func(j *api.Job) { j.TaskGroups[0].Tasks[0].SetConfig(name, value) }
}

func (x *table) drain(t *testing.T) { x.drained(t, "drain", 5*time.Second) }

func (x *table) forcedDrain(t *testing.T) { x.drained(t, "forced drain", -1) }

// drained is a drain with that deadline, see agent.Drain.
func (x *table) drained(t *testing.T, row string, deadline time.Duration) {
	first := func(kind string) func(*api.Job) {
		return func(j *api.Job) {
			j.Type = new(kind)
			j.Constrain(api.NewConstraint("${node.unique.name}", "regexp", "0$"))
		}
	}
	cells := x.on(t, map[string]func(*api.Job){
		row:                           nil,
		row + " with on_drain stop":   option("on_drain", "stop"),
		row + " with on_unknown stop": option("on_unknown", "stop"),
		row + " of a batch job":       first("batch"),
		row + " of a system job":      first("system"),
	})
	x.each(t, 0, func(client int) error { return agent.Drain(t.Context(), x.api(), x.node(client), deadline) })
	together(slices.Concat(slices.Collect(maps.Values(cells))...), func(c *cell) {
		switch what := strings.TrimPrefix(c.row, row); {
		case what == " of a batch job", what == " of a system job":
			kind := strings.Fields(what)[2]
			c.stopped(t, 0, "the node is drained, and nothing replaces the task of a "+kind+" job")
			if n := c.starts(0); n != 1 {
				t.Errorf("%s: started %d times", c, n)
			}
		case what == " with on_drain stop" && c.by.asks():
			c.fresh(t)
			c.says(t, "Stopping", "the node is drained, and on_drain is stop")
		case what == " with on_unknown stop" && !c.by.asks():
			c.fresh(t)
			c.says(t, "Stopping", "on_unknown is stop, and the reason of the stop is not known")
		default:
			c.same(t)
			c.released(t, "the node is drained")
		}
		c.finish(t)
	})
	x.each(t, 0, func(client int) error { return agent.Undrain(t.Context(), x.api(), x.node(client)) })
}

// drainOfAll is hashicorp/nomad#10592: the replacement comes from a blocked evaluation, without a previous allocation.
func (x *table) drainOfAll(t *testing.T) {
	x.only(t, 0)
	cells := x.cells(t, "drain with no other node", nil)
	x.each(t, 0, func(client int) error { return agent.Drain(t.Context(), x.api(), x.node(client), 0) })
	together(cells, func(c *cell) {
		c.within(t, "is not placed", func() error {
			if _, err := c.placed(); err == nil {
				return errors.New("it is")
			}
			return nil
		})
	})
	time.Sleep(8 * time.Second) // reapers look, more than once
	together(cells, func(c *cell) { c.untouched(t) })
	x.only(t, 1)
	together(cells, func(c *cell) {
		c.same(t)
		c.finish(t)
	})
	x.each(t, 0, func(client int) error { return agent.Undrain(t.Context(), x.api(), x.node(client)) })
}

// restart ends agents in good order, and starts them again before they are missed.
func (x *table) restart(t *testing.T) {
	cells := x.on(t, map[string]func(*api.Job){"agent restart": nil})["agent restart"]
	x.each(t, 0, func(client int) error {
		return errors.Join(x.Clients[client].Stop(t.Context()), x.Clients[client].Start(t.Context()))
	})
	x.each(t, 0, func(client int) error {
		_, err := agent.WaitHealthy(t.Context(), x.Clients[client])
		return err
	})
	together(cells, func(c *cell) {
		c.same(t, c.alloc)
		c.finish(t)
		if c.by.asks() { // the plugin that is started again asks with what the one before did
			c.stopped(t, 0, "the job is stopped")
		}
	})
}

// lost kills agents, and starts them again when others have their tasks.
func (x *table) lost(t *testing.T) {
	cells := x.on(t, map[string]func(*api.Job){
		"lost node":        nil,
		"lost batch":       func(j *api.Job) { j.Type = new("batch") },
		"keep original":    x.disconnect("keep_original"),
		"keep replacement": x.disconnect("keep_replacement"),
		"on_lost restart":  option("on_lost", "restart"),
	})
	var all []*cell
	for _, list := range cells {
		all = append(all, list...)
	}
	x.each(t, 0, func(client int) error { return x.Clients[client].Kill(t.Context()) })
	together(all, func(c *cell) {
		if c.row == "on_lost restart" {
			c.fresh(t)
			return
		}
		c.same(t)
	})
	t.Log("all have moved")
	x.each(t, 0, func(client int) error {
		if err := x.Clients[client].Start(t.Context()); err != nil {
			return err
		}
		_, err := agent.WaitHealthy(t.Context(), x.Clients[client])
		return err
	})
	time.Sleep(10 * time.Second) // for what a node that is back does to tasks that were its
	together(all, func(c *cell) {
		switch c.row {
		case "keep original":
			c.same(t, c.alloc)
		case "on_lost restart":
			c.same(t, "")
		default:
			c.same(t)
		}
		c.finish(t)
	})
}

// cutOffAlone freezes agents until others have their tasks. Their plugins go on meanwhile: where nothing else proves
// that their node is lost, their lease lasts, and the replacement waits until they are back.
func (x *table) cutOffAlone(t *testing.T) {
	all := x.on(t, map[string]func(*api.Job){"cut off alone": nil})["cut off alone"]
	x.each(t, 0, func(client int) error { return agent.Freeze(x.Clients[client]) })
	together(all, func(c *cell) {
		if c.by.asks() {
			c.same(t)
			return
		}
		c.waits(t)
	})
	x.each(t, 0, func(client int) error { return agent.Thaw(x.Clients[client]) })
	time.Sleep(10 * time.Second) // for what a node that is back does to tasks that were its
	together(all, func(c *cell) {
		c.same(t)
		c.finish(t)
	})
}

// lostAlone kills agents with their plugins, as a loss of power does, when no other client may have their tasks.
func (x *table) lostAlone(t *testing.T) {
	x.only(t, 0)
	cells := x.cells(t, "lost node without another", nil)
	x.each(t, 0, func(client int) error {
		plugins, err := x.Clients[client].PluginPIDs(t.Context())
		plugin, ok := plugins["nomad-driver-remote"]
		if !ok {
			return errors.Join(err, errors.New("the plugin does not run"))
		}
		return errors.Join(x.Clients[client].Kill(t.Context()), unix.Kill(plugin, unix.SIGKILL))
	})
	for _, c := range x.classes {
		x.down(t, x.client(c, 0))
	}
	together(cells, func(c *cell) { c.untouched(t) })
	x.each(t, 0, func(client int) error {
		if err := x.Clients[client].Start(t.Context()); err != nil {
			return err
		}
		_, err := agent.WaitHealthy(t.Context(), x.Clients[client])
		return err
	})
	together(cells, func(c *cell) {
		c.same(t)
		c.finish(t)
	})
}

func (x *table) down(t *testing.T, client int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		n, _, err := x.api().Nodes().Info(x.node(client), nil)
		if err == nil && n.Status != api.NodeStatusReady {
			return
		}
		must.True(t, time.Now().Before(deadline), must.Sprint("a node is never down"))
		time.Sleep(200 * time.Millisecond)
	}
}

// cutOff freezes the server, so that all agents are cut off from it.
func (x *table) cutOff(t *testing.T) {
	cells := x.on(t, map[string]func(*api.Job){
		"cut off": nil,
		"stop_on_client_after": func(j *api.Job) {
			j.TaskGroups[0].Disconnect = &api.DisconnectStrategy{StopOnClientAfter: new(10 * time.Second)}
		},
	})
	all := append(cells["cut off"], cells["stop_on_client_after"]...)
	must.NoError(t, x.Freeze())
	time.Sleep(16 * time.Second)
	together(all, func(c *cell) { c.process(t) })
	must.NoError(t, x.Thaw())
	for _, c := range cells["stop_on_client_after"] {
		// Nomad replaces an allocation that its client ended so, and calls complete, when its job is evaluated: at
		// once if the node was missed, too, and else never.
		c.within(t, "is evaluated", func() error {
			list, _, err := x.api().Jobs().Allocations(c.job, true, nil)
			if err == nil && (len(list) != 1 || list[0].ClientStatus == api.AllocClientStatusComplete) {
				_, _, err = x.api().Jobs().ForceEvaluate(c.job, nil)
				return err
			}
			return errors.Join(err, errors.New("its client has not told that it ended it"))
		})
	}
	time.Sleep(8 * time.Second) // until nodes that were missed are back
	together(all, func(c *cell) {
		c.same(t, "")
		c.finish(t)
	})
}
