package environment

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

var errFailed = errors.New("failed")

func noWait() {}

func TestWhoWaitsGetsTheErrorOfWhoLedUnlessThatWasCancelled(t *testing.T) {
	for name, c := range map[string]struct {
		cancelled bool
		err, want error
	}{
		"it succeeds":                      {},
		"it fails":                         {err: errFailed, want: errFailed},
		"it takes longer than it may":      {err: context.DeadlineExceeded, want: context.DeadlineExceeded},
		"it succeeds when it was given up": {cancelled: true},
		"it is given up":                   {cancelled: true, err: errFailed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g flight
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				release := make(chan struct{})
				go func() {
					led, err := g.do(ctx, "", noWait, func() error { <-release; return c.err })
					if !led || err != c.err {
						t.Errorf("who asked first: led %t, %v", led, err)
					}
				}()
				synctest.Wait()
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() {
						led, err := g.do(t.Context(), "", noWait, func() error { t.Error("it is done twice"); return nil })
						if led || err != c.want {
							t.Errorf("who waited: led %t, %v", led, err)
						}
					})
				}
				synctest.Wait()
				if c.cancelled {
					cancel()
				}
				close(release)
				all.Wait()
				if led, err := g.do(t.Context(), "", noWait, func() error { return nil }); !led || err != nil || len(g.calls) > 0 {
					t.Errorf("who came later: led %t, %v; left are %d", led, err, len(g.calls))
				}
			})
		})
	}
}

func TestNobodyWaitsLongerThanNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flight
		release := make(chan struct{})
		go g.do(t.Context(), "a", noWait, func() error { <-release; return nil })
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		if led, err := g.do(ctx, "a", noWait, nil); led || err != context.Canceled {
			t.Errorf("who gives up: led %t, %v", led, err)
		}
		if led, err := g.do(t.Context(), "b", nil, func() error { return errFailed }); !led || err != errFailed {
			t.Errorf("who wants something else: led %t, %v", led, err)
		}
		close(release)
	})
}

func TestAPanicLeavesNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flight
		release := make(chan struct{})
		go func() {
			defer func() { _ = recover() }()
			g.do(t.Context(), "", noWait, func() error { <-release; panic("no") })
		}()
		synctest.Wait()
		go close(release)
		if led, err := g.do(t.Context(), "", noWait, nil); led || err != nil {
			t.Errorf("led %t, %v", led, err)
		}
	})
}
