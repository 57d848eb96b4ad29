// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/demo/stage"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// agentSees waits until the agent's own statistics have the stick as plugged in, or
// as not, and shows how long that took.
func (d *demo) agentSees(ctx context.Context, since time.Time, plugged bool) error {
	return stage.Until(ctx, "the agent to see it", func() (bool, error) {
		stats, err := d.agent.Client().Nodes().Stats("", nil)
		if err != nil {
			return false, err
		}
		for _, g := range stats.DeviceStats {
			for id, s := range g.InstanceStats {
				if in := statBool(s, "Plugged in"); in == nil || *in != plugged {
					continue
				}
				what := "unplugged"
				if plugged {
					what = "plugged in"
				}
				stage.Note("%.1f s later the agent's statistics have %s as %s.", time.Since(since).Seconds(), id, what)
				return true, nil
			}
		}
		return false, nil
	})
}

func statBool(s *api.DeviceStats, name string) *bool {
	if s.Stats == nil || s.Stats.Attributes[name] == nil {
		return nil
	}
	return s.Stats.Attributes[name].BoolVal
}

// nodeHas waits until the node has the device with this problem, none for a healthy
// one, and shows it.
func (d *demo) nodeHas(ctx context.Context, since time.Time, problem string) error {
	return stage.Until(ctx, "the node to have it", func() (bool, error) {
		devices, err := nomad.Devices(ctx, d.agent.Client())
		for _, dev := range devices {
			if dev.Healthy != (problem == "") || !strings.Contains(dev.Description, problem) {
				continue
			}
			health := "healthy"
			if !dev.Healthy {
				health = "unhealthy: " + dev.Description
			}
			stage.Note("%.1f s after it, the node has: %s  %s  %s", time.Since(since).Seconds(), dev.Group, dev.ID, health)
			return true, nil
		}
		return false, err
	})
}

// hears shows the task's output from where it was shown last, until a line has the
// text.
func (d *demo) hears(ctx context.Context, text string) error {
	return stage.Until(ctx, fmt.Sprintf("the task to say %q", text), func() (bool, error) {
		out, err := d.output()
		if err != nil {
			return false, err
		}
		for {
			line, _, whole := strings.Cut(out[min(d.told, len(out)):], "\n")
			if !whole {
				return false, nil
			}
			d.told += len(line) + 1
			stage.Note("  | %s", line)
			if strings.Contains(line, text) {
				return true, nil
			}
		}
	})
}

// skip leaves out what the task has said until now.
func (d *demo) skip() error {
	out, err := d.output()
	d.told = len(out)
	return err
}

func (d *demo) output() (string, error) {
	alloc := &api.Allocation{ID: d.alloc}
	cancel := make(chan struct{})
	defer close(cancel)
	fs := d.agent.Client().AllocFS()
	frames, errs := fs.Logs(alloc, false, "talker", api.FSLogNameStdout, api.OriginStart, 0, cancel, nil)
	var out strings.Builder
	for {
		select {
		case f, ok := <-frames:
			if !ok {
				return out.String(), nil
			}
			out.Write(f.Data)
		case err := <-errs:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return out.String(), err
		}
	}
}
