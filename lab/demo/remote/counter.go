// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/demo/stage"
)

// counter is the job's process, as the last line of its output tells.
type counter struct {
	alloc *api.AllocationListStub // through which Nomad has it
	pid   int
	count int
}

// alive reports whether the process runs. The host is this machine.
func (c counter) alive() bool {
	_, err := os.Stat(fmt.Sprint("/proc/", c.pid))
	return err == nil
}

// next waits until an allocation other than the last one runs, and has the wanted number of new lines. It shows these.
func (d *demo) next(ctx context.Context, wanted int) (now counter, err error) {
	read, shown := 0, 0
	err = stage.Until(ctx, "the counter", func() (bool, error) {
		alloc, err := d.placed()
		if err != nil || alloc == nil {
			return false, err
		}
		now.alloc = alloc
		lines, err := d.output(ctx, alloc)
		if err != nil {
			return false, err
		}
		for ; read < len(lines) && shown < wanted; read++ {
			if _, err := fmt.Sscanf(lines[read], "%d on "+d.hostname+", pid %d", &now.count, &now.pid); err != nil {
				return false, fmt.Errorf("the counter printed %q: %w", lines[read], err)
			}
			if now.pid == d.last.pid && now.count <= d.last.count {
				continue // seen before
			}
			stage.Note("%s | %s", alloc.NodeName, lines[read])
			shown++
		}
		return shown == wanted, nil
	})
	return now, err
}

// placed is the allocation that runs, unless it is the last one that was seen; nil if there is none.
func (d *demo) placed() (*api.AllocationListStub, error) {
	list, _, err := d.agent.Client().Jobs().Allocations(d.job.ID, false, nil)
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

// output is what Nomad has of the counter's output, in complete lines.
func (d *demo) output(ctx context.Context, alloc *api.AllocationListStub) ([]string, error) {
	logs := filepath.Join(d.nodes[alloc.NodeName].DataDir(), "alloc", alloc.ID, "alloc", "logs")
	out, err := d.agent.Exec(ctx, "find", logs, "-name", "count.stdout.*", "-exec", "cat", "{}", "+")
	if err != nil {
		return nil, fmt.Errorf("failed to read the counter's output: %w: %s", err, out)
	}
	lines := strings.Split(out, "\n")
	return lines[:len(lines)-1], nil
}
