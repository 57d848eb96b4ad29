// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test"
	"google.golang.org/grpc/stats"
)

// ended watches until the plugin ends, and says after what time.
func ended(t *testing.T, o *orphan) time.Duration {
	t.Helper()
	start := time.Now()
	stopped := time.Duration(-1)
	o.watch(t.Context(), func() { stopped = time.Since(start) })
	return stopped
}

// go-plugin gives up on a start after a minute, which is longer than one grace period.
func TestOrphan_WaitsForASlowAgent(t *testing.T) {
	t.Setenv(graceEnv, "30s")
	for name, parent := range map[string]int{"whose parent lives": 0, "whose parent is gone, too, for one": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrphan(hclog.NewNullLogger())
				want := 4 * o.grace
				if parent != 0 {
					o.parent, want = parent, o.grace+o.grace/6 // it is seen at the first look
				}
				test.Eq(t, want, ended(t, o), test.Sprint("it ended after"))
			})
		})
	}
}

func TestOrphan_StaysWhileAnAgentIsConnected(t *testing.T) {
	t.Setenv(graceEnv, "30s")
	synctest.Test(t, func(t *testing.T) {
		o := newOrphan(hclog.NewNullLogger())
		o.parent = -1
		o.HandleConn(t.Context(), &stats.ConnBegin{})
		o.end() // and it was asked to
		go func() {
			time.Sleep(time.Hour)
			o.HandleConn(t.Context(), &stats.ConnEnd{})
		}()
		test.Eq(t, time.Hour, ended(t, o), test.Sprint("it ended after"))
	})
}

func TestOrphan_StaysWhileItsParentLives(t *testing.T) {
	t.Setenv(graceEnv, "30s")
	synctest.Test(t, func(t *testing.T) {
		o := newOrphan(hclog.NewNullLogger())
		o.HandleConn(t.Context(), &stats.ConnBegin{})
		o.HandleConn(t.Context(), &stats.ConnEnd{})
		go func() {
			time.Sleep(time.Hour)
			o.end()
		}()
		test.Eq(t, time.Hour, ended(t, o), test.Sprint("it ended after"))
	})
}
