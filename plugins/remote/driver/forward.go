// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/remote/host"
)

// TaskStats is part of core.Forwarder. It brings what the host's driver sends by this connection: after the end of the
// channel Nomad asks again.
func (t *remoteTask) TaskStats(ctx context.Context, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	usages := make(chan *drivers.TaskResourceUsage)
	link, err := t.connected()
	var from <-chan *drivers.TaskResourceUsage
	if err == nil {
		from, err = link.Driver.TaskStats(ctx, t.saved.Run.TaskID, interval)
	}
	if err != nil { // Nomad would log it every few seconds
		close(usages)
		return usages, nil
	}
	go func() {
		defer close(usages)
		for usage := range from {
			usage.Timestamp = time.Now().UnixNano() // by this node's clock
			select {
			case usages <- usage:
			case <-ctx.Done():
				return
			}
		}
	}()
	return usages, nil
}

// ExecTask is part of core.Forwarder. The command may be the script of a template that has changed.
func (t *remoteTask) ExecTask(command []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	link, err := t.connected()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	t.refresh(ctx, link)
	result, err := link.Driver.ExecTask(t.saved.Run.TaskID, command, timeout)
	return result, t.lostOr(link, err)
}

// ExecTaskStreamingRaw is part of core.Forwarder.
func (t *remoteTask) ExecTaskStreamingRaw(
	ctx context.Context, command []string, tty bool, stream drivers.ExecTaskStream,
) error {
	link, err := t.connected()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the host's command when the agent's side is gone
	defer cancel()
	return t.lostOr(link, link.Driver.ExecTaskStreamingRaw(ctx, t.saved.Run.TaskID, command, tty, stream))
}

// lostOr is an error of the host, or that there is no connection any more.
func (t *remoteTask) lostOr(link *host.Link, err error) error {
	if err == nil {
		return nil
	}
	if link.Alive() {
		return errors.New(plain.Line(err.Error(), mostOfReason))
	}
	return fmt.Errorf("the connection to endpoint %q was lost, and with it the command", t.saved.Endpoint)
}
