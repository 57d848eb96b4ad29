// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock estimates the engine's clock by the Date of its answers. (/info has the exact time, but Podman takes 0.9 s for
// it.) When the engine's clock is set, ages computed from earlier times become wrong: too small after a step back, too
// large after a step forward. So ageAt limits an age by the time since the last step that this process has seen.
type clock struct {
	podman atomic.Bool // the answers are Podman's

	mu      sync.Mutex
	first   time.Time // when the first answer came, by this machine's clock
	at      time.Time // what the engine's clock showed at first, by the answer with the shortest delay
	high    time.Time // the latest value of at since the last step
	stepped time.Time // when a step was last seen, by this machine's clock; zero: never
}

// A Date has whole seconds, and an answer may be delayed by as much as callTime. So a date that is up to backStep
// behind is taken for a delayed answer. The next date, which catches up with high, is no step either.
const (
	secondStep = time.Second
	aheadStep  = 5 * time.Second
	backStep   = callTime
)

// see takes the date of an answer that has just arrived.
func (c *clock) see(date time.Time) { c.seeAt(date, time.Now()) }

func (c *clock) seeAt(date, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first.IsZero() {
		c.first, c.at, c.high = now, date, date
		return
	}
	switch at := date.Add(-now.Sub(c.first)); {
	case at.Sub(c.high) > aheadStep, c.at.Sub(at) > backStep:
		c.at, c.high, c.stepped = at, at, now
	case at.After(c.at), c.at.Sub(at) > secondStep:
		c.at = at
		if at.After(c.high) {
			c.high = at
		}
	}
}

// now is the engine's time, or up to a second before.
func (c *clock) now() time.Time { return c.nowAt(time.Now()) }

func (c *clock) nowAt(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first.IsZero() {
		return now
	}
	return c.at.Add(now.Sub(c.first))
}

// age is how long ago t was by the engine's clock. A time from before the last step counts as that of the step.
func (c *clock) age(t time.Time) time.Duration { return c.ageAt(t, time.Now()) }

func (c *clock) ageAt(t, now time.Time) time.Duration {
	age := c.nowAt(now).Sub(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stepped.IsZero() {
		return age
	}
	if since := now.Sub(c.stepped); age > since || age < -aheadStep {
		return since
	}
	return age
}
