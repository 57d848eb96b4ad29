package main

import (
	"sync"
	"time"
)

// quiet is how long a build says nothing among the task's events, and longer each time:
// Nomad keeps ten of a task.
const quiet = 20 * time.Second

// progress tells now and then what a long build is at.
type progress struct {
	event func(string, ...any)
	timer *time.Timer

	mu   sync.Mutex
	wait time.Duration // until it tells again
	last string
	over bool
}

func newProgress(event func(string, ...any)) *progress {
	p := &progress{event: event, wait: quiet}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(p.wait, p.tell)
	return p
}

func (p *progress) hear(words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = words
}

func (p *progress) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if p.last != "" {
		p.event("Environment: still building: %s", p.last)
	}
	p.wait *= 2
	p.timer.Reset(p.wait)
}

func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
}
