// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// testClock is a clock of an engine that answers each 130 ms.
type testClock struct {
	clock
	engine, here time.Time
}

func (c *testClock) answers(n int, late time.Duration) {
	for range n {
		c.pass(130 * time.Millisecond)
		c.seeAt(c.engine.Add(-late).Truncate(time.Second), c.here)
	}
}

func (c *testClock) pass(d time.Duration) { c.engine, c.here = c.engine.Add(d), c.here.Add(d) }

func newClock() *testClock {
	here := time.Now()
	c := &testClock{engine: here.Add(-time.Hour), here: here}
	c.answers(20, 0)
	return c
}

func TestClock_FollowsTheDatesOfAnswers(t *testing.T) {
	c := newClock()
	off := func() time.Duration { return c.engine.Sub(c.nowAt(c.here)) }
	must.Between(t, 0, off(), 200*time.Millisecond)
	at := c.engine
	c.answers(1, 20*time.Second) // it was on its way for long
	must.Between(t, 19*time.Second, off(), 22*time.Second)
	c.answers(20, 0)
	must.Between(t, 0, off(), 200*time.Millisecond)
	must.Between(t, 2*time.Second, c.ageAt(at, c.here), 3*time.Second)
	c.pass(time.Hour)
	must.Between(t, time.Hour, c.ageAt(at, c.here), time.Hour+3*time.Second)
}

// What was before a step is as old as the step, at least.
func TestClock_BelievesNoAgeAcrossAStep(t *testing.T) {
	for name, step := range map[string]time.Duration{
		"forward": 24 * time.Hour, "a little forward": 20 * time.Second,
		"back": -24 * time.Hour, "a little back": -20 * time.Second,
	} {
		c := newClock()
		at := c.engine
		c.pass(3 * time.Second)
		c.engine = c.engine.Add(step)
		c.answers(10, 0)
		test.Between(t, 0, c.engine.Sub(c.nowAt(c.here)), time.Second, test.Sprint(name))
		test.Less(t, 5*time.Second, c.ageAt(at, c.here), test.Sprint(name))
		later := c.engine
		c.pass(30 * time.Second)
		if step < -backStep || step > 0 {
			test.Between(t, 30*time.Second, c.ageAt(at, c.here), 35*time.Second, test.Sprint(name))
		}
		test.Between(t, 29*time.Second, c.ageAt(later, c.here), 31*time.Second, test.Sprint(name))
	}
}
