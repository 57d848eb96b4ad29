// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// slowUser is a client whose connection is slow at first.
type slowUser struct {
	wait time.Duration
	got  atomic.Int64
}

func (u *slowUser) Send(m *drivers.ExecTaskStreamingResponseMsg) error {
	if out := m.Stdout; out != nil && len(out.Data) > 0 {
		time.Sleep(u.wait)
		u.wait = 0
		u.got.Add(int64(len(out.Data)))
	}
	return nil
}

func (u *slowUser) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) { return nil, io.EOF }

func TestExecStreaming_SendsAllOutputToASlowClient(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("exec sleep 1000", "")
	a.run(cfg)
	defer a.destroy(cfg.ID)
	m := testsupport.Mark()
	for _, background := range []string{"", "setsid -f sleep " + m + "; "} { // the sleep keeps the pipe open
		u := &slowUser{wait: 3 * time.Second}
		// the output fits into a pipe, so the command ends before its output is sent
		must.NoError(t, a.driver.ExecTaskStreamingRaw(t.Context(), cfg.ID,
			[]string{"/bin/sh", "-c", background + "head -c 60000 /dev/zero"}, false, u))
		n := u.got.Load()
		test.Eq(t, 60_000, n, test.Sprintf("after %q: %d bytes of 60000", background, n))
	}
}

// goneUser is a client that disconnects. The driver learns of this only when Send fails, because Nomad does not pass on
// the end of Recv.
type goneUser struct{ hungUp chan struct{} }

func (u goneUser) Send(*drivers.ExecTaskStreamingResponseMsg) error {
	select {
	case <-u.hungUp:
		return io.ErrClosedPipe
	default:
		return nil
	}
}

func (u goneUser) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	<-u.hungUp
	return nil, io.EOF
}

func TestExecStreaming_EndsASilentCommandWhenItsClientIsGone(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("exec sleep 1000", "")
	a.run(cfg)
	defer a.destroy(cfg.ID)
	for _, tty := range []bool{false, true} {
		m := testsupport.Mark()
		u := goneUser{hungUp: make(chan struct{})}
		ended := make(chan error, 1)
		go func() { ended <- a.driver.ExecTaskStreamingRaw(t.Context(), cfg.ID, []string{"sleep", m}, tty, u) }()
		testsupport.WaitSleepers(t, m, 1)
		close(u.hungUp)
		test.ErrorIs(t, await(t, "the end of the command", ended), io.ErrClosedPipe,
			test.Sprintf("terminal %v", tty))
		testsupport.WaitSleepers(t, m, 0)
	}
}

// quickUser has no input, and sends the end of its input after a moment, as Nomad's client does. Such
// a client fails if the command's stream ends before the client has sent the end of its input.
type quickUser struct {
	mu         sync.Mutex
	said, over bool // said: end of input sent; over: exit received
	early      bool
}

func (u *quickUser) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	u.mu.Lock()
	first := !u.said
	u.mu.Unlock()
	if !first {
		return nil, io.EOF
	}
	time.Sleep(50 * time.Millisecond) // latency of the connection
	u.mu.Lock()
	defer u.mu.Unlock()
	u.said = true
	return &drivers.ExecTaskStreamingRequestMsg{Stdin: &proto.ExecTaskStreamingIOOperation{Close: true}}, nil
}

func (u *quickUser) Send(m *drivers.ExecTaskStreamingResponseMsg) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if m.Exited {
		u.over, u.early = true, !u.said
	}
	return nil
}

func TestExecStreaming_EndsAfterItsInput(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("exec sleep 1000", "")
	a.run(cfg)
	defer a.destroy(cfg.ID)
	u := &quickUser{}
	must.NoError(t, a.driver.ExecTaskStreamingRaw(t.Context(), cfg.ID, []string{"true"}, false, u))
	test.True(t, u.over)
	test.False(t, u.early, test.Sprint("the exit came before the end of the input: Nomad's client would fail"))
}
