// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command remote shows a task on a host that is reached by SSH. It goes on when its Nomad node is drained, and when the
// next node is killed: another one takes the process over. The host is this machine, by its own SSH server. The demo
// runs three Nomad agents and removes everything at the end: go tool mage demo:remote.
package main

import (
	"context"
	"embed"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/stage"
)

//go:embed *.hcl
var files embed.FS

func main() {
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`, "remote": ""},
		Remote:  "sim",
		OnHost:  true,
		Play: func(ctx context.Context, a agent.Agent) error {
			d := &demo{Script: &stage.Script{Agent: a, Files: files, Words: map[string]string{}}}
			return d.Play(ctx, d.acts()...)
		},
	}.Main()
}

type demo struct {
	*stage.Script

	last counter
}

// counter is the job's process, as a line of its output tells.
type counter struct {
	alloc *api.AllocationListStub // through which Nomad has it; nil: none
	pid   int
	count int
}

func (d *demo) acts() []stage.Act {
	goesOn := stage.Step{Note: "Node {node} has it now. The count goes on: it is process {pid}, as before."}
	return []stage.Act{
		{Say: `A counter runs on host "box", which nodes remote-1 and remote-2 reach by SSH`, Steps: []stage.Step{
			{Run: "nomad job run -detach demo.nomad.hcl"},
			{Do: d.started},
			{Note: "Node {node} has started it. On the host it is process {pid}."},
		}},
		{Say: "Node {node} is drained", Steps: []stage.Step{
			{Run: "nomad node drain -enable -yes -detach -deadline 1m {id}"},
			{Do: d.takenOver},
			goesOn,
		}},
		{Say: "Node {node} is lost: kill -9 of its agent. The drained node is eligible again", Steps: []stage.Step{
			{Run: "nomad node drain -disable -yes {before}"},
			{Do: d.killNode},
			{Note: "(The server waits for the node's next heartbeat: here for some seconds, by default for half a minute.)"},
			{Do: d.takenOver},
			goesOn,
		}},
		{Say: "nomad alloc stop: this ends the process, and Nomad starts another", Steps: []stage.Step{
			{Run: "nomad alloc stop -detach {alloc}"},
			{Do: d.startedAgain},
			{Note: "Process {pid} counts from 1."},
		}},
		{Say: "nomad job stop", Steps: []stage.Step{
			{Run: "nomad job stop -detach counter"},
			{Do: func(ctx context.Context) error { return d.gone(ctx, d.last.pid) }},
			{Note: "Nothing runs on the host."},
		}},
	}
}

// started waits for the first lines of the counter.
func (d *demo) started(ctx context.Context) error {
	d.last = counter{}
	return d.next(ctx, 3)
}

// takenOver waits until the counter runs on another node, and returns an error if it was started again.
func (d *demo) takenOver(ctx context.Context) error {
	before := d.last
	if err := d.next(ctx, 3); err != nil {
		return err
	}
	if d.last.pid != before.pid || d.last.count <= before.count {
		return fmt.Errorf("the counter was started again: it is at %d, as process %d; before it was at %d, as process %d",
			d.last.count, d.last.pid, before.count, before.pid)
	}
	return nil
}

// startedAgain waits until another counter runs, and the last one has ended.
func (d *demo) startedAgain(ctx context.Context) error {
	before := d.last
	if err := d.next(ctx, 1); err != nil {
		return err
	}
	if d.last.pid == before.pid || d.last.count != 1 {
		return fmt.Errorf("the counter was not started again: it is at %d, as process %d", d.last.count, d.last.pid)
	}
	return d.gone(ctx, before.pid)
}

// gone waits for the end of a process on the host, which is this machine.
func (d *demo) gone(ctx context.Context, pid int) error {
	err := stage.Until(ctx, fmt.Sprint("the end of process ", pid), func() (bool, error) {
		_, err := os.Stat(fmt.Sprint("/proc/", pid))
		return os.IsNotExist(err), nil
	})
	if err == nil {
		stage.Note("Process %d is gone.", pid)
	}
	return err
}

// killNode kills the agent of the node that has the counter.
func (d *demo) killNode(ctx context.Context) error {
	nodes, err := lab.Nodes(ctx, d.Agent.Info().Dir)
	if err != nil {
		return err
	}
	return nodes[d.last.alloc.NodeName].Kill(ctx)
}

// next waits until an allocation other than the last one runs, and has the wanted number of new lines. It shows these.
func (d *demo) next(ctx context.Context, wanted int) error {
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	now := counter{}
	read, shown := 0, 0
	err = stage.Until(ctx, "the counter", func() (bool, error) {
		now.alloc, err = d.placed()
		if err != nil || now.alloc == nil {
			return false, err
		}
		out, _ := d.Shell(ctx, "nomad alloc logs "+now.alloc.ID) // there may be none yet
		lines := strings.Split(out, "\n")
		for ; read < len(lines)-1 && shown < wanted; read++ {
			if _, err := fmt.Sscanf(lines[read], "%d on "+hostname+", pid %d", &now.count, &now.pid); err != nil {
				return false, fmt.Errorf("the counter printed %q: %w", lines[read], err)
			}
			if now.pid == d.last.pid && now.count <= d.last.count {
				continue // seen before
			}
			stage.Note("%s | %s", now.alloc.NodeName, lines[read])
			shown++
		}
		return shown == wanted, nil
	})
	if err != nil {
		return err
	}
	if d.last.alloc != nil {
		d.Words["before"] = d.last.alloc.NodeID
	}
	d.last = now
	d.Words["node"], d.Words["id"], d.Words["alloc"] = now.alloc.NodeName, now.alloc.NodeID, now.alloc.ID
	d.Words["pid"] = fmt.Sprint(now.pid)
	return nil
}

// placed is the allocation that runs, unless it is the last one that was seen; nil if there is none.
func (d *demo) placed() (*api.AllocationListStub, error) {
	list, _, err := d.Agent.Client().Jobs().Allocations("counter", false, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to list the allocations: %w", err)
	}
	for _, a := range list {
		known := d.last.alloc != nil && d.last.alloc.ID == a.ID
		if !known && a.DesiredStatus == api.AllocDesiredStatusRun && a.ClientStatus == api.AllocClientStatusRunning {
			return a, nil
		}
	}
	return nil, nil
}
