// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestCache_LimitsConcurrentBuilds(t *testing.T) {
	c := testCache(t)
	most := max(2, runtime.GOMAXPROCS(0))
	tasks := 3 * most
	var mu sync.Mutex // guards what follows
	came, now := 0, 0
	everyoneCame := make(chan struct{})
	comes := func(builds int) {
		mu.Lock()
		defer mu.Unlock()
		if now += builds; now > most {
			t.Errorf("%d at once", now)
		}
		if came++; came == tasks {
			close(everyoneCame)
		}
	}
	var all sync.WaitGroup
	for n := range tasks {
		all.Go(func() {
			queued := false
			e, err := c.Get(t.Context(), Spec{Key: fmt.Sprint(n),
				Queued: func() {
					queued = true
					comes(0)
				},
				Build: func(ctx context.Context, as *Builder, dir, scratch string) error {
					if !queued {
						comes(1)
						defer comes(-1)
					}
					<-everyoneCame
					return building(3)(ctx, as, dir, scratch)
				}})
			test.NoError(t, err)
			e.Release()
		})
	}
	all.Wait()
	mustBeTidy(t, c, tasks)
}

func TestCache_LimitStartsWithTheBuild(t *testing.T) {
	c := testCache(t)
	fill(c)
	var free time.Time
	e := mustGet(t, c, Spec{Key: "k", Limit: time.Hour,
		Queued: func() {
			free = time.Now()
			<-c.places
		},
		Build: func(ctx context.Context, as *Builder, dir, scratch string) error {
			if end, ok := ctx.Deadline(); !ok || end.Before(free.Add(time.Hour)) {
				t.Errorf("it has %s", time.Until(end))
			}
			return building(3)(ctx, as, dir, scratch)
		}})
	e.Release()
}

func TestCache_IsRecoverablyBusy(t *testing.T) {
	c := testCache(t)
	s := Spec{Key: "k", Fresh: time.Nanosecond, Limit: time.Millisecond, Build: building(3)}
	fill(c)
	const busy = "busy with other environments"
	_, err := c.Get(t.Context(), s)
	must.ErrorContains(t, err, busy)
	test.True(t, isTemporary(err), test.Sprintf("got %v", err))
}

func fill(c *Cache) {
	for range cap(c.places) {
		c.places <- struct{}{}
	}
}

func TestGet_SaysThatAnotherBuildTookTooLong(t *testing.T) {
	c := testCache(t)
	st, err := c.cfg.open()
	must.NoError(t, err)
	s := Spec{Key: "k", Build: building(3), Limit: 20 * time.Millisecond}
	l, err := st.tryLock(s.Key, exclusive)
	must.NoError(t, err)
	defer l.close()
	_, err = c.Get(t.Context(), s)
	test.ErrorContains(t, err, "build_timeout")
	test.True(t, isTemporary(err))
}
