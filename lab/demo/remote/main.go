// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command remote shows a task on a host that is reached by SSH. It goes on when its Nomad node is drained, and when the
// next node is killed: another one takes the process over. The host is this machine, by its own SSH server. The demo
// runs three Nomad agents and removes everything at the end: go tool mage demo:remote.
package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/stage"
)

//go:embed demo.nomad.hcl
var job string

func main() {
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`, "remote": ""},
		Remote:  "sim",
		OnHost:  true,
		Play: func(ctx context.Context, a agent.Agent) error {
			nodes, err := lab.Nodes(ctx, a.Info().Dir)
			if err != nil {
				return err
			}
			hostname, err := os.Hostname()
			if err != nil {
				return err
			}
			d := &demo{agent: a, nodes: nodes, hostname: hostname}
			return stage.InOrder(ctx, d.runs, d.drained, d.killed, d.stopped)
		},
	}.Main()
}

type demo struct {
	agent    agent.Agent            // with the server
	nodes    map[string]agent.Agent // that reach the host, by name
	hostname string

	job  *stage.Job
	last counter
}

// runs starts the counter on the host.
func (d *demo) runs(ctx context.Context) (err error) {
	stage.Say("A counter runs on host \"box\", which nodes remote-1 and remote-2 reach by SSH")
	if d.job, err = stage.Submit(d.agent, job); err != nil {
		return err
	}
	if d.last, err = d.next(ctx, 3); err != nil {
		return err
	}
	stage.Note("Node %s has started it. On the host it is process %d.", d.last.alloc.NodeName, d.last.pid)
	return nil
}

// drained has the other node take the counter over.
func (d *demo) drained(ctx context.Context) error {
	stage.Say("Node %s is drained: nomad node drain -enable", d.last.alloc.NodeName)
	drain := &api.DrainSpec{Deadline: time.Minute}
	if _, err := d.agent.Client().Nodes().UpdateDrain(d.last.alloc.NodeID, drain, false, nil); err != nil {
		return fmt.Errorf("failed to drain the node: %w", err)
	}
	return d.takenOver(ctx)
}

// killed has the first node take the counter back.
func (d *demo) killed(ctx context.Context) error {
	stage.Say("Node %s is lost: kill -9 of its agent. The drained node is eligible again", d.last.alloc.NodeName)
	for name, n := range d.nodes {
		if name == d.last.alloc.NodeName {
			continue
		}
		id, err := n.Client().Agent().Self()
		if err != nil {
			return fmt.Errorf("node %s does not answer: %w", name, err)
		}
		if _, err := d.agent.Client().Nodes().UpdateDrain(id.Stats["client"]["node_id"], nil, true, nil); err != nil {
			return fmt.Errorf("failed to end the drain: %w", err)
		}
	}
	if err := d.nodes[d.last.alloc.NodeName].Kill(ctx); err != nil {
		return err
	}
	stage.Note("(The server waits for the node's next heartbeat: here for some seconds, by default for half a minute.)")
	return d.takenOver(ctx)
}

// takenOver waits until the counter runs on another node, and returns an error if it was started again.
func (d *demo) takenOver(ctx context.Context) error {
	before := d.last
	now, err := d.next(ctx, 3)
	if err != nil {
		return err
	}
	if now.pid != before.pid || now.count <= before.count {
		return fmt.Errorf("the counter was started again: it is at %d, as process %d; before it was at %d, as process %d",
			now.count, now.pid, before.count, before.pid)
	}
	stage.Note("Node %s has it now. The count goes on: it is process %d, as before.", now.alloc.NodeName, now.pid)
	d.last = now
	return nil
}

// stopped shows that a stop ends the process.
func (d *demo) stopped(ctx context.Context) error {
	stage.Say("nomad alloc stop: this ends the process, and Nomad starts another")
	before := d.last
	alloc := &api.Allocation{ID: before.alloc.ID}
	if _, err := d.agent.Client().Allocations().Stop(alloc, nil); err != nil {
		return fmt.Errorf("failed to stop the allocation: %w", err)
	}
	now, err := d.next(ctx, 1)
	if err != nil {
		return err
	}
	if before.alive() || now.pid == before.pid || now.count != 1 {
		return fmt.Errorf("the counter was not started again: it is at %d, as process %d", now.count, now.pid)
	}
	stage.Note("Process %d is gone. Process %d counts from 1.", before.pid, now.pid)

	stage.Say("nomad job stop")
	if err := d.job.Stop(false); err != nil {
		return err
	}
	err = stage.Until(ctx, "the end of the counter", func() (bool, error) { return !now.alive(), nil })
	if err != nil {
		return err
	}
	stage.Note("Process %d is gone, too: nothing runs on the host.", now.pid)
	return nil
}
