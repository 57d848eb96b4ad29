// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestCache_LimitsConcurrentBuilds(t *testing.T) {
	c := testCache(t)
	most := max(2, runtime.GOMAXPROCS(0))
	var now, built atomic.Int32
	var all sync.WaitGroup
	for n := range 3 * most {
		all.Go(func() {
			e, err := c.Get(t.Context(), Spec{Key: fmt.Sprint(n), Build: func(ctx context.Context, dir,
				scratch string) error {
				test.LessEq(t, int32(most), now.Add(1), test.Sprint("at once"))
				defer now.Add(-1)
				if built.Add(1) <= int32(most) { // the first ones are there together
					testsupport.Eventually(t, "all places are taken", func() bool { return built.Load() >= int32(most) })
				}
				return building(3)(ctx, dir, scratch)
			}})
			test.NoError(t, err)
			e.Release()
		})
	}
	all.Wait()
	mustBeTidy(t, c, 3*most)
}

func TestCache_WaitsAsLongAsItsContext(t *testing.T) {
	c := testCache(t)
	st, err := c.cfg.open()
	must.NoError(t, err)
	s := Spec{Key: "k", Build: building(3)}
	l, err := st.tryLock(s.Key, exclusive)
	must.NoError(t, err)
	ended := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), 20*time.Millisecond)
	}
	ctx, cancel := ended()
	defer cancel()
	_, err = c.Get(ctx, s)
	test.ErrorIs(t, err, context.DeadlineExceeded, test.Sprint("while another builds it"))
	l.close()
	for range cap(c.places) {
		c.places <- struct{}{}
	}
	ctx, cancel = ended()
	defer cancel()
	_, err = c.Get(ctx, s)
	test.ErrorIs(t, err, context.DeadlineExceeded, test.Sprint("while others are built"))
}
