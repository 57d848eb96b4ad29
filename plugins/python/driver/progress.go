// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"sync"
	"time"
)

// quiet is the time until the first event of a build that goes on. It is longer each time: Nomad keeps ten events of a
// task.
const quiet = 20 * time.Second

// progress reports a long build from time to time, by the last line of uv.
type progress struct {
	event func(string, ...any)
	timer *time.Timer

	mu   sync.Mutex
	wait time.Duration // until the next event
	last string
	over bool
}

func newProgress(event func(string, ...any)) *progress {
	p := &progress{event: event, wait: quiet}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(p.wait, p.report)
	return p
}

func (p *progress) hear(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = line
}

func (p *progress) report() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	is := "Environment: still building"
	if p.last != "" {
		is += fmt.Sprintf(", %.200s", p.last)
	}
	p.event("%s", is)
	p.wait *= 2
	p.timer.Reset(p.wait)
}

func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
}
