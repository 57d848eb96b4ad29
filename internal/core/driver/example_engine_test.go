// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// goroutines is an engine whose tasks are calls of a function. To kill one ends its context.
type goroutines struct {
	call  func(ctx context.Context, c *task.Command, signals <-chan string) (code int)
	tasks sync.Map // by id
}

func (e *goroutines) Start(ctx context.Context, s *driver.Start) (driver.Task, error) {
	cmd, err := s.Command(ctx, task.Command{}, "")
	if err != nil {
		return nil, err
	}
	running, kill := context.WithCancel(context.Background())
	g := &goroutine{signals: make(chan string, 1), kill: kill, ended: make(chan struct{})}
	e.tasks.Store(s.Task.ID, g)
	go func() {
		defer close(g.ended)
		if g.exit.Code = e.call(running, cmd, g.signals); running.Err() != nil {
			g.exit = task.Exit{Signal: 9}
		}
	}()
	return g, nil
}

func (e *goroutines) Recover(_ context.Context, id string, _ json.RawMessage, _ driver.Event) (driver.Task, error) {
	if g, ok := e.tasks.Load(id); ok {
		return g.(*goroutine), nil
	}
	return nil, fmt.Errorf("task %s is not known", id)
}

func (e *goroutines) Destroy(ctx context.Context, id string) error {
	if g, ok := e.tasks.LoadAndDelete(id); ok {
		return g.(*goroutine).Destroy(ctx)
	}
	return nil
}

type goroutine struct {
	signals chan string
	kill    context.CancelFunc
	ended   chan struct{}
	exit    task.Exit // complete when ended is closed
}

func (g *goroutine) Ended() <-chan struct{} { return g.ended }
func (g *goroutine) Exit() *task.Exit       { return &g.exit }

func (g *goroutine) Signal(_ context.Context, signal string) error {
	select {
	case g.signals <- signal:
	default: // as of a process: one that is pending is enough
	}
	return nil
}

func (g *goroutine) Stop(ctx context.Context, timeout time.Duration, signal string) error {
	_ = g.Signal(ctx, signal)
	select {
	case <-g.ended:
	case <-time.After(timeout):
	}
	return g.Destroy(ctx)
}

func (g *goroutine) Destroy(context.Context) error {
	g.kill()
	<-g.ended
	return nil
}
