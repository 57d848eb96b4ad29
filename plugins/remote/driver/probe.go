// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/structs"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// probeTime is how long Probe waits for the connection to an endpoint; the attempt to connect continues after that. It
// is also the time until the next Probe while an endpoint or the agent's API cannot be used.
const probeTime = 5 * time.Second

// Probe implements core.Prober. The driver stays healthy if an endpoint cannot be used, because tasks on other
// endpoints can run. To select a usable endpoint, a job needs a constraint on the endpoint's attributes.
func (e *engine) Probe(ctx context.Context) (core.Node, error) {
	node := core.Node{Attributes: map[string]*structs.Attribute{}}
	if len(e.hosts) == 0 {
		node.Missing = append(node.Missing, "no endpoint is configured: add endpoint blocks")
	}
	var all sync.WaitGroup
	var mu sync.Mutex // guards node
	for name, h := range e.hosts {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, probeTime)
			defer cancel()
			link, err := h.Connect(ctx)
			if err == nil {
				e.tidy(ctx, name, link)
			}
			mu.Lock()
			defer mu.Unlock()
			prefix := "endpoint." + name + "."
			node.Attributes[prefix+"healthy"] = structs.NewBoolAttribute(err == nil)
			if err != nil {
				node.Missing = append(node.Missing, plain.Line(err.Error(), maxMessage))
				node.Again = probeTime
				return
			}
			node.Attributes[prefix+"arch"] = structs.NewStringAttribute(link.Arch)
			node.Attributes[prefix+"cgroup"] = structs.NewStringAttribute(link.Cgroup)
			node.Attributes[prefix+"root"] = structs.NewBoolAttribute(link.Root)
			if link.Address != "" {
				node.Attributes[prefix+"address"] = structs.NewStringAttribute(link.Address)
			}
		})
	}
	all.Wait()
	slices.Sort(node.Missing)
	if err := e.nomad.answers(ctx); err != nil {
		node.Missing = append(node.Missing, "can't find out why Nomad ends a task, so stopped tasks keep running: "+
			plain.Line(err.Error(), maxMessage))
		node.Again = probeTime
	}
	return node, nil
}

// tidy ends runs on a host that are no longer needed: the runs in engine.left, and runs of stopped jobs that no
// connection has followed for shim.AbsentTime.
func (e *engine) tidy(ctx context.Context, endpoint string, link *host.Link) {
	for value := range e.left.Range {
		left := value.(*remoteTask)
		if left.saved.Endpoint != endpoint || !left.tidying.CompareAndSwap(false, true) {
			continue
		}
		go func() { // a run that the host can't end must not delay others
			defer left.tidying.Store(false)
			err := left.endRun(e.ctx, link)
			if err != nil {
				e.logger.Warn("failed to end the run of a destroyed task", "run", left.saved.RunID, "error", err)
			}
		}()
	}
	there, err := shim.List.On(ctx, link.Shim, &shim.Nothing{})
	if err != nil {
		e.logger.Warn("failed to list the runs on a host", "error", err)
		return
	}
	for _, run := range there.Runs {
		if run.Followed || run.State == shim.Kept || run.Alone < shim.AbsentTime {
			continue
		}
		of := NamesOf(run.Key)
		_, known := e.nomad.over(ctx, of.Namespace, run.Owner.AllocID)
		j, err := e.nomad.job(ctx, of.Namespace, of.Job)
		if !known || err != nil || j == nil || !j.Stop { // the run of an unknown allocation may be another cluster's
			continue
		}
		e.logger.Info("ending a run whose job was stopped", "run", run.TaskID)
		_, err = shim.Change.On(ctx, link.Shim, &shim.ChangeRequest{TaskID: run.TaskID, Epoch: run.Epoch, State: shim.Ending})
		if err != nil {
			e.logger.Warn("failed to end the run of a stopped job", "run", run.TaskID, "error", err)
		}
	}
}
