// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/simulate/simulatetest"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testsupport.Eventually(t, what, ok)
}

func TestReconnect_AfterTheServerWasKilled(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	c := newClient(t, configOf(h))
	conn, err := c.Start(t.Context(), "/bin/cat")
	must.NoError(t, err)
	must.NoError(t, h.KillServer())
	_, err = conn.Read(make([]byte, 1))
	must.ErrorIs(t, err, io.EOF)
	must.ErrorContains(t, err, "the connection was lost")
	eventually(t, "the loss is noticed", func() bool { return c.Connect(t.Context()) != nil })
	must.NoError(t, h.StartServer(t.Context()))
	eventually(t, "there is a new connection", func() bool { return c.Connect(t.Context()) == nil })
	out, err := c.Run(t.Context(), nil, "echo again")
	must.NoError(t, err)
	must.Eq(t, "again\n", string(out))
}

func TestReconnect_AfterTheLinkWasDown(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{Network: true})
	config := configOf(h)
	config.Silence, config.Timeout = 3*time.Second, 2*time.Second
	c := newClient(t, config)
	conn, err := c.Start(t.Context(), "/bin/cat")
	must.NoError(t, err)
	echo := func() error {
		if _, err := io.WriteString(conn, "x"); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, 1))
		return err
	}
	must.NoError(t, echo())

	must.NoError(t, h.LinkDown())
	time.Sleep(500 * time.Millisecond)
	must.NoError(t, h.LinkUp())
	must.NoError(t, echo(), must.Sprint("a short loss ends nothing"))

	must.NoError(t, h.LinkDown())
	begun := time.Now()
	must.Error(t, echo())
	test.Between(t, config.Silence/2, time.Since(begun), 2*config.Silence)
	eventually(t, "attempts fail", func() bool { return c.Connect(t.Context()) != nil })
	must.NoError(t, h.LinkUp())
	eventually(t, "there is a new connection", func() bool { return c.Connect(t.Context()) == nil })
}

// slow is a link to a host that carries so many bytes a second in each direction, and holds few itself. It returns its
// port.
func slow(t *testing.T, h *simulate.Host, rate int) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	carry := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		for b := make([]byte, rate/50); ; time.Sleep(20 * time.Millisecond) {
			n, err := from.Read(b)
			if n > 0 {
				_, err = to.Write(b[:n])
			}
			if err != nil {
				return
			}
		}
	}
	go func() { // ends with the listener
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", h.HostPort())
			if err != nil {
				near.Close()
				return
			}
			_ = near.(*net.TCPConn).SetReadBuffer(64 << 10)
			_ = far.(*net.TCPConn).SetReadBuffer(64 << 10)
			go carry(near, far)
			go carry(far, near)
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// An answer comes behind megabytes, of which each is a sign of life.
func TestReconnect_LeavesASlowLinkToItsWork(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	config := configOf(h)
	config.Port, config.Silence = slow(t, h, 1<<20), time.Second
	c := newClient(t, config)
	conn, err := c.Start(t.Context(), "/bin/sh", "-c", "head -c 6000000 /dev/zero; head -c 6000000 >/dev/null; echo end")
	must.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 6_000_000))
	must.NoError(t, err)
	_, err = conn.Write(make([]byte, 6_000_000))
	must.NoError(t, err)
	must.Eq(t, "end\n", readTo(t, conn, "\n"))
}

func TestConnect_IsOneConnectionAndPausesAfterFailures(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer l.Close()
	var connections atomic.Int32
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			conn.Close()
		}
	}()
	file, public := newKey(t)
	c := newClient(t, Config{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, User: "u", KeyFile: file,
		HostKeys: []string{line(public)}})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { test.Error(t, c.Connect(t.Context())) })
	}
	all.Wait()
	must.Eq(t, 1, connections.Load())
	must.ErrorContains(t, c.Connect(t.Context()), "(the next attempt is in ")
	eventually(t, "there is another attempt", func() bool {
		_ = c.Connect(t.Context())
		return connections.Load() == 2
	})
}

func TestClose_EndsAll(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	before := testsupport.Descriptors(t)
	c, err := New(configOf(h))
	must.NoError(t, err)
	conn, err := c.Start(t.Context(), "/bin/cat")
	must.NoError(t, err)
	must.NoError(t, c.Close())
	must.NoError(t, c.Close())
	_, err = conn.Read(make([]byte, 1))
	must.Error(t, err)
	must.ErrorContains(t, c.Connect(t.Context()), "the connection was closed")
	test.Eq(t, before, testsupport.Descriptors(t))
	eventually(t, "nothing runs on the host", func() bool {
		left, err := h.Processes()
		must.NoError(t, err)
		return len(left) == 0
	})
}
