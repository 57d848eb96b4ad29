// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// A task may be destroyed while its handover waits for a free place, or between two attempts to hand it over.
func TestHandOver_DoesNotRecreateADestroyedTask(t *testing.T) {
	h := newHost(t, withCgroup)
	c := h.client()
	other := h.launch(c, h.shell("exec sleep 1000")) // keeps the connection open
	st := h.launch(c, h.shell("exec sleep 1000"))
	c.mu.Lock()
	held := c.holds[st.ID]
	c.mu.Unlock()
	places := make(semaphore, 1)
	places.acquire()
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.handOverTask(c.wire.Current(), held, places)
	}()
	h.destroy(c, st.ID)
	places.release()
	<-over
	states, err := h.store.List()
	must.NoError(t, err)
	must.Len(t, 1, states)
	test.Eq(t, other.ID, states[0].ID)
	h.destroy(c, other.ID)
}
