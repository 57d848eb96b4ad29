// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint/memory"
)

// Nobody can tell whose a task is whose record can't be read, nor how it ends: it is lost, and is not started beside
// what may still run.
func TestTask_IsLostWithItsRecord(t *testing.T) {
	for name, c := range map[string]func(t *testing.T, w *world, a *node, rt *remoteTask) (*node, *remoteTask){
		"it runs": func(_ *testing.T, w *world, a *node, rt *remoteTask) (*node, *remoteTask) {
			w.store.Damage(rt.ref.Name)
			return a, rt
		},
		"it is stopped": func(t *testing.T, w *world, a *node, rt *remoteTask) (*node, *remoteTask) {
			blind(a)
			w.store.Damage(rt.ref.Name)
			must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
			return a, rt
		},
		"it is stopped, and damaged then": func(t *testing.T, w *world, a *node, rt *remoteTask) (*node, *remoteTask) {
			blind(a, func() { w.store.Damage(rt.ref.Name) })
			must.NoError(t, rt.Stop(t.Context(), time.Second, ""))
			return a, rt
		},
		"the plugin is killed": func(t *testing.T, w *world, a *node, rt *remoteTask) (*node, *remoteTask) {
			state, err := rt.Saved()
			must.NoError(t, err)
			a.crash()
			w.store.Damage(rt.ref.Name)
			b := w.node("a")
			again, err := b.recoverTask(rt.saved.Owner.TaskID, state)
			must.NoError(t, err)
			return b, again.(*remoteTask)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.node("a")
				first := a.mustStart("alloc-1")
				a, rt := c(t, w, a, first)
				must.True(t, ended(rt))
				test.True(t, rt.Exit().Lost)
				test.StrContains(t, rt.Exit().Reason, "is damaged, and it may still run there")
				test.StrContains(t, rt.Exit().Reason, "half of it is missing")
				test.StrNotContains(t, a.said(), "not this allocation's")
				rt.Told(t.Context())
				must.NoError(t, a.Destroy(t.Context(), rt.saved.Owner.TaskID))
				a.client.Break(nil)
				_, err := a.start("alloc-1")
				must.ErrorContains(t, err, "is damaged")
				test.Len(t, 1, w.store.Runs())
				test.Eq(t, 1, w.running())
			})
		})
	}
}

// blind has a node see no change by itself; with f, that is called before a release arrives.
func blind(a *node, f ...func()) {
	a.client.Break(func(method string) memory.Fault {
		if method == "Release" {
			for _, f := range f {
				f()
			}
		}
		return memory.Fault{Request: method == "Watch"}
	})
}
