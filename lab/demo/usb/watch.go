// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/lab/demo/stage"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// nodeHas waits until the node has the device with this problem and shows it. An empty problem
// is a healthy device.
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

// hears shows the new output of the task until a line has the text.
func (d *demo) hears(ctx context.Context, text string) error {
	return stage.Until(ctx, fmt.Sprintf("the task to print %q", text), func() (bool, error) {
		out, err := d.job.Output(ctx)
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

// skip skips the output that the task has written so far.
func (d *demo) skip(ctx context.Context) error {
	out, err := d.job.Output(ctx)
	d.told = len(out)
	return err
}
