// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command remote shows a counter on a remote host: its Nomad node is drained, the next one is killed, and it counts on.
// It runs Nomad agents and a host of its own, and removes everything at the end: mage demo:remote.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/stage"
)

//go:embed demo.nomad.hcl
var counter string

func main() { play().Main() }

func play() stage.Demo {
	d := &demo{}
	return stage.Demo{
		Plugins: map[string]string{"remote": ""},
		OnHost:  true,
		OnNodes: func(ctx context.Context, nodes []agent.Agent) error {
			d.nodes, d.client = nodes, nodes[0].Client()
			return stage.InOrder(ctx, d.runs, d.drained, d.killed, d.counted, d.stopped)
		},
	}
}

type demo struct {
	nodes  []agent.Agent // the first is the server, too
	client *api.Client
	allocs []*api.Allocation // one after the other
}

// runs starts the counter on the node that is the server, too: the others can be killed.
func (d *demo) runs(ctx context.Context) error {
	stage.Say("A counter on the host \"box\", which three Nomad nodes reach by SSH")
	for _, n := range d.nodes[1:] {
		if err := d.eligible(ctx, n, false); err != nil {
			return err
		}
	}
	if _, err := stage.Submit(d.nodes[0], counter); err != nil {
		return err
	}
	if _, err := d.next(ctx); err != nil {
		return err
	}
	for _, n := range d.nodes[1:] {
		if err := d.eligible(ctx, n, true); err != nil {
			return err
		}
	}
	return d.show(ctx)
}

func (d *demo) eligible(ctx context.Context, n agent.Agent, is bool) error {
	_, err := d.client.Nodes().ToggleEligibility(agent.NodeID(n), is, (&api.WriteOptions{}).WithContext(ctx))
	return err
}

// drained drains the node.
func (d *demo) drained(ctx context.Context) error {
	stage.Say("Its node, %s, is drained", d.node())
	if err := agent.Drain(ctx, d.client, agent.NodeID(d.agent()), time.Hour); err != nil {
		return err
	}
	took, err := d.next(ctx)
	if err != nil {
		return err
	}
	stage.Note("%.1f s later %s has it. The process has run on.", took.Seconds(), d.node())
	return d.show(ctx)
}

// killed ends a node as a cut of its power does.
func (d *demo) killed(ctx context.Context) error {
	n := d.agent()
	stage.Say("That node, %s, is lost: its agent and the plugin are killed with SIGKILL", d.node())
	plugins, err := n.PluginPIDs(ctx)
	if err != nil {
		return err
	}
	if err := n.Kill(ctx); err != nil {
		return err
	}
	for _, pid := range plugins {
		_ = unix.Kill(pid, unix.SIGKILL) // or it has ended with the agent
	}
	took, err := d.next(ctx)
	if err != nil {
		return err
	}
	stage.Note("%.1f s later %s has it. Most of that is how long Nomad waits for heartbeats.", took.Seconds(), d.node())
	return d.show(ctx)
}

// counted compares what the three allocations have in their logs.
func (d *demo) counted(ctx context.Context) error {
	stage.Say("The logs of the three allocations, one after the other")
	var lines []string
	for i, a := range d.allocs {
		own, err := d.output(a)
		if err != nil {
			return err
		}
		first, pid, _ := strings.Cut(own[0], " ")
		last, _, _ := strings.Cut(own[len(own)-1], " ")
		stage.Note("%.8s on %s: %s to %s, all by process %s", a.ID, d.nameOf(a), first, last, pid)
		if n, _ := strconv.Atoi(first); i == 2 && n > 0 && n <= len(lines) {
			stage.Note("(Lines from %d on are on %s, too: it was killed before the host knew that it has them. It "+
				"removes them if it comes back.)", n, d.nameOf(d.allocs[i-1]))
			lines = lines[:n-1]
		}
		lines = append(lines, own...)
	}
	_, pid, _ := strings.Cut(lines[0], " ")
	for i, line := range lines {
		if want := fmt.Sprintf("%d %s", i+1, pid); line != want {
			return fmt.Errorf("line %d is %q and not %q", i+1, line, want)
		}
	}
	stage.Note("%d lines of one process, in order, and none is missing.", len(lines))
	return nil
}

// stopped ends the counter, and sees that its process is gone.
func (d *demo) stopped(ctx context.Context) error {
	last := d.last()
	stage.Say("nomad alloc stop %.8s: now the process ends, and Nomad starts another one", last.ID)
	lines, err := d.output(last)
	if err != nil {
		return err
	}
	_, pid, _ := strings.Cut(lines[0], " ")
	start, err := d.start(ctx, pid)
	if err != nil {
		return err
	}
	if start == "" {
		return fmt.Errorf("process %s does not run on the host", pid)
	}
	if _, err := d.client.Allocations().Stop(last, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
		return err
	}
	if _, err := d.next(ctx); err != nil {
		return err
	}
	if lines, err = d.output(d.last()); err != nil {
		return err
	}
	n, now, _ := strings.Cut(lines[0], " ")
	left, err := d.start(ctx, pid)
	if err != nil {
		return err
	}
	if left == start {
		return fmt.Errorf("process %s runs on, and the new allocation has process %s", pid, now)
	}
	if n != "1" || now == pid {
		return fmt.Errorf("the new allocation begins with %s of process %s, where process %s was stopped", n, now, pid)
	}
	stage.Note("Process %s is gone from the host.", pid)
	return d.show(ctx)
}

// start is when a process on the host was started, in clock ticks, or empty if there is none. A command in the task of
// the last allocation looks.
func (d *demo) start(ctx context.Context, pid string) (string, error) {
	var out, why bytes.Buffer
	code, err := d.client.Allocations().Exec(ctx, d.last(), "counter", false,
		[]string{"/bin/sh", "-c", `test ! -e "/proc/$1" || cut -d " " -f 22 "/proc/$1/stat"`, "sh", pid},
		strings.NewReader(""), &out, &why, nil, (&api.QueryOptions{}).WithContext(ctx))
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, why.String())
	}
	if err != nil {
		return "", fmt.Errorf("failed to look for process %s on the host: %w", pid, err)
	}
	return strings.TrimSpace(out.String()), nil
}

// next waits until another allocation runs, and has written something.
func (d *demo) next(ctx context.Context) (took time.Duration, err error) {
	start := time.Now()
	err = stage.Until(ctx, "the counter", func() (bool, error) {
		list, _, err := d.client.Jobs().Allocations("counter", false, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return false, err
		}
		for _, stub := range list {
			known := slices.ContainsFunc(d.allocs, func(a *api.Allocation) bool { return a.ID == stub.ID })
			if known || stub.ClientStatus != api.AllocClientStatusRunning {
				continue
			}
			a, _, err := d.client.Allocations().Info(stub.ID, (&api.QueryOptions{}).WithContext(ctx))
			if err != nil {
				return false, err
			}
			if lines, _ := d.output(a); len(lines) < 3 {
				return false, nil
			}
			d.allocs = append(d.allocs, a)
			return true, nil
		}
		return false, nil
	})
	return time.Since(start), err
}

// agent is where the counter is now, and node its name.
func (d *demo) agent() agent.Agent { return d.nodes[d.at(d.last())] }
func (d *demo) node() string       { return d.nameOf(d.last()) }

func (d *demo) last() *api.Allocation { return d.allocs[len(d.allocs)-1] }

func (d *demo) nameOf(a *api.Allocation) string { return fmt.Sprintf("node%d", d.at(a)+1) }

// at is the index of an allocation's node.
func (d *demo) at(a *api.Allocation) int {
	return slices.IndexFunc(d.nodes, func(n agent.Agent) bool { return agent.NodeID(n) == a.NodeID })
}

// show prints the last line.
func (d *demo) show(ctx context.Context) error {
	lines, err := d.output(d.last())
	if err != nil {
		return err
	}
	n, pid, _ := strings.Cut(lines[len(lines)-1], " ")
	stage.Note("It counts: %s, process %s", n, pid)
	return nil
}

// output is what the counter has written to the files of an allocation, whole lines only.
func (d *demo) output(a *api.Allocation) ([]string, error) {
	logs := filepath.Join(d.nodes[d.at(a)].DataDir(), "alloc", a.ID, "alloc", "logs")
	files, err := filepath.Glob(filepath.Join(logs, "counter.stdout.*"))
	if err != nil || len(files) == 0 {
		return nil, err
	}
	text, err := os.ReadFile(files[0])
	lines := strings.Split(string(text), "\n")
	return lines[:len(lines)-1], err
}
