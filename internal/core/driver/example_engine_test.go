// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver_test

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// goroutines is an engine that runs each task as a call of a Go function, which must return after the signal "SIGKILL".
type goroutines struct {
	call  func(c *task.Command, signals <-chan string) *task.Exit
	tasks sync.Map // by id
}

func (e *goroutines) Start(ctx context.Context, s *driver.Start) (driver.Task, error) {
	cmd, err := s.Command(ctx, task.Command{}, "")
	if err != nil {
		return nil, err
	}
	g := &goroutine{signals: make(chan string)}
	e.tasks.Store(s.Task.ID, g)
	go func() { g.End(e.call(cmd, g.signals)) }()
	return g, nil
}

func (e *goroutines) Recover(
	_ context.Context, c *drivers.TaskConfig, _ []byte, _ driver.Event,
) (driver.Task, error) {
	if g, ok := e.tasks.Load(c.ID); ok {
		return g.(*goroutine), nil
	}
	return nil, errors.New("its goroutine ended with the plugin's process")
}

func (e *goroutines) Destroy(ctx context.Context, id string) error {
	if g, ok := e.tasks.LoadAndDelete(id); ok {
		_ = g.(*goroutine).Signal(ctx, "SIGKILL")
		<-g.(*goroutine).Ended()
	}
	return nil
}

type goroutine struct {
	driver.Ending
	signals chan string
}

func (g *goroutine) Signal(_ context.Context, signal string) error {
	select {
	case g.signals <- signal: // the function has received the signal
	case <-g.Ended():
	}
	return nil
}

func (g *goroutine) Stop(ctx context.Context, timeout time.Duration, signal string) error {
	_ = g.Signal(ctx, cmp.Or(signal, "SIGINT"))
	select {
	case <-g.Ended():
		return nil
	case <-time.After(timeout):
	}
	_ = g.Signal(ctx, "SIGKILL")
	<-g.Ended()
	return nil
}
