// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// handOver measures how long it takes until the next node has a task of remote, which runs on, and beside it one of
// raw_exec that runs on the node itself, which Nomad starts again. Both are on the same node, and leave it at once.
func (b *remoteBench) handOver(ctx context.Context) (err error) {
	c, err := agent.RunCluster(ctx, agent.ClusterOptions{
		Dir: filepath.Join(b.dir, "cluster"), Quick: true,
		Server:  agent.Options{ServerOnly: true, Name: "server", Progress: b.steps.Progress},
		Clients: slices.Repeat([]agent.Options{{Plugins: []agent.Plugin{b.plugin()}}}, 3),
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, c.Close(ctx))
	}()
	nomad := c.Server.Client()
	eligible := func(client int, is bool) error {
		_, err := nomad.Nodes().ToggleEligibility(agent.NodeID(c.Clients[client]), is, nil)
		return err
	}
	if err := errors.Join(eligible(1, false), eligible(2, false)); err != nil {
		return err
	}
	of := &remoteCluster{&cluster{bench: b.bench, agent: c.Server, marker: fmt.Sprintf("1%07d", os.Getpid())}, b}
	sides := map[string]*api.Job{b.left: of.on(b.left, 1, of.sleeper()...), b.right: of.job(raw, 1, of.sleeper())}
	former := map[string]*api.Allocation{}
	for side, job := range sides {
		if _, err := of.start(ctx, job); err != nil {
			return err
		}
		if former[side], err = of.next(ctx, job, ""); err != nil {
			return err
		}
	}
	// moves makes a client the only one that is eligible, and takes the tasks there
	moves := func(what string, to int, event func() error) error {
		if err := eligible(to, true); err != nil {
			return err
		}
		begin := time.Now()
		if err := event(); err != nil {
			return err
		}
		for side, job := range sides {
			a, err := of.next(ctx, job, former[side].ID)
			if err != nil {
				return err
			}
			has := a.TaskStates["task"].StartedAt
			b.add(side, float64(has.Sub(begin)), quantity{what + ", until the next one has the task", millis, 0, nil})
			old, _, err := nomad.Allocations().Info(former[side].ID, nil)
			if err != nil {
				return err
			}
			if ended := old.TaskStates["task"].FinishedAt; !ended.IsZero() {
				b.add(side, float64(has.Sub(ended)), quantity{"– since the former one had it", millis, 0, nil})
			}
			former[side] = a
		}
		return poll.Sleep(ctx, settle)
	}
	on := 0
	for range b.remoteDrains {
		from := c.Clients[on]
		on = (on + 1) % len(c.Clients)
		err = moves("node drained", on, func() error { return agent.Drain(ctx, nomad, agent.NodeID(from), time.Hour) })
		if err == nil {
			err = agent.Undrain(ctx, nomad, agent.NodeID(from))
		}
		if err == nil { // which made it eligible
			err = eligible(slices.Index(c.Clients, from), false)
		}
		if err != nil {
			return err
		}
	}
	b.note("In the rows about nodes, raw_exec runs a program on the node, which Nomad ends and starts again on the next " +
		"one; that of remote runs on meanwhile. Most of the time is Nomad's: it tells of an end, or sees that a node is " +
		"lost, and places.")
	return moves("node killed", (on+1)%len(c.Clients), func() error { return c.Clients[on].Kill(ctx) })
}

// next waits until another allocation of a job runs.
func (c *remoteCluster) next(ctx context.Context, job *api.Job, former string) (next *api.Allocation, err error) {
	err = wait(ctx, 50*time.Millisecond, func() (bool, error) {
		list, _, err := c.agent.Client().Jobs().Allocations(*job.ID, false, nil)
		if err != nil {
			return false, err
		}
		for _, a := range list {
			if a.ID != former && a.ClientStatus == api.AllocClientStatusRunning && a.DesiredStatus == api.AllocDesiredStatusRun {
				next, _, err = c.agent.Client().Allocations().Info(a.ID, nil)
			}
		}
		return next != nil, err
	})
	return next, err
}
