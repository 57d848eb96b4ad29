// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

// lostBy is what every call returns of a connection that was lost.
func lostBy(t *testing.T, conn *Conn, err error) {
	t.Helper()
	must.StrHasPrefix(t, "the connection to "+conn.config.String()+" was lost: ", err.Error())
	must.False(t, errors.Is(err, io.EOF))
}

// blocked has no input until it is closed.
type blocked chan struct{}

func (b blocked) Read([]byte) (int, error) { <-b; return 0, io.EOF }

func TestLost_IsTheSameSentenceAtAnyMoment(t *testing.T) {
	server := sshdtest.Start(t)
	for range 10 {
		conn := dial(t, configOf(server))
		reads, err := conn.Start(t.Context(), "/bin/cat")
		must.NoError(t, err)
		writes, err := conn.Start(t.Context(), "/bin/cat")
		must.NoError(t, err)
		results := make(chan error)
		var calls int
		call := func(f func() error) {
			calls++
			go func() { results <- f() }()
		}
		call(func() error { _, err := reads.Read(make([]byte, 1)); return err })
		input, started := make(chan struct{}), filepath.Join(t.TempDir(), "started")
		call(func() error {
			_, err := conn.Run(t.Context(), blocked(input), `touch "$1"; cat`, started)
			return err
		})
		testsupport.Eventually(t, "the script runs", func() bool { return testsupport.Exists(started) })
		call(func() error {
			for {
				if _, err := writes.Write(make([]byte, 1000)); err != nil {
					return err
				}
			}
		})
		call(func() error {
			for {
				if _, err := conn.Run(t.Context(), nil, "true"); err != nil {
					return err
				}
			}
		})
		call(func() error {
			for {
				program, err := conn.Start(t.Context(), "/bin/true")
				if err == nil {
					_, err = program.Read(make([]byte, 1))
				}
				if err != nil && err != io.EOF {
					return err
				}
			}
		})
		server.Stop()
		for range calls {
			lostBy(t, conn, <-results)
		}
		close(input)
		<-conn.Done()
		_, err = conn.Run(t.Context(), nil, "true")
		lostBy(t, conn, err)
		_, err = conn.Start(t.Context(), "true")
		lostBy(t, conn, err)
		_, err = reads.Write(make([]byte, 1))
		lostBy(t, conn, err)
		server.Restart()
	}
}

func TestKeepAlive_ClosesAConnectionThatIsCut(t *testing.T) {
	link := func() (*sshdtest.Link, Config) {
		server := sshdtest.Start(t)
		link := server.Link()
		config := configOf(server)
		config.Port, config.silence = link.Port, time.Second
		return link, config
	}
	cutLink, config := link()
	conn := dial(t, config)
	program, err := conn.Start(t.Context(), "/bin/cat")
	must.NoError(t, err)
	echo := func() error {
		if _, err := io.WriteString(program, "x"); err != nil {
			return err
		}
		_, err := io.ReadFull(program, make([]byte, 1))
		return err
	}
	must.NoError(t, echo())

	cutLink.Cut()
	begun := time.Now()
	lostBy(t, conn, echo())
	<-conn.Done()
	test.GreaterEq(t, config.silence/2, time.Since(begun))
	_, err = conn.Run(t.Context(), nil, "true")
	lostBy(t, conn, err)
	must.ErrorContains(t, err, "the host sent nothing for 1s")
	cutLink.Restore()
	must.NoError(t, dial(t, config).Close())

	// a connection through a jump host that is cut
	way, jump := link()
	config.Jump = &jump
	conn = dial(t, config)
	way.Cut()
	<-conn.Done()
	_, err = conn.Run(t.Context(), nil, "true")
	lostBy(t, conn, err)
}

// A wait of more than the silence is what this is about.
func TestKeepAlive_LeavesAnIdleConnection(t *testing.T) {
	config := configOf(sshdtest.Start(t))
	config.silence = 2 * time.Second
	conn := dial(t, config)
	select {
	case <-conn.Done():
		t.Fatal("it was closed")
	case <-time.After(3 * time.Second):
	}
}

// slow is a link to a server that carries so many bytes a second in each direction, and buffers few. It returns its
// port.
func slow(t *testing.T, server *sshdtest.Server, rate int) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
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
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server.Address())
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
	return listener.Addr().(*net.TCPAddr).Port
}

// The answer comes behind megabytes, each byte of which is a sign of life.
func TestKeepAlive_LeavesASlowLink(t *testing.T) {
	server := sshdtest.Start(t)
	config := configOf(server)
	config.Port, config.silence = slow(t, server, 1<<20), time.Second
	program, err := dial(t, config).Start(t.Context(), "/bin/sh", "-c",
		"head -c 2000000 /dev/zero; head -c 2000000 >/dev/null; echo end")
	must.NoError(t, err)
	_, err = io.ReadFull(program, make([]byte, 2_000_000))
	must.NoError(t, err)
	_, err = program.Write(make([]byte, 2_000_000))
	must.NoError(t, err)
	must.Eq(t, "end\n", readTo(t, program, "\n"))
}

func TestClose_EndsEverything(t *testing.T) {
	server := sshdtest.Start(t)
	before := testsupport.Descriptors(t)
	conn, err := Dial(t.Context(), configOf(server))
	must.NoError(t, err)
	mark := testsupport.Mark()
	program, err := conn.Start(t.Context(), "/bin/sh", "-c", "sleep "+mark+" & pid=$!; cat; kill $pid")
	must.NoError(t, err)
	testsupport.WaitSleepers(t, mark, 1)
	must.NoError(t, conn.Close())
	must.NoError(t, conn.Close())
	<-conn.Done()
	_, err = program.Read(make([]byte, 1))
	must.EqError(t, err, "the connection to "+conn.config.String()+" was lost: it was closed")
	must.Eq(t, before, testsupport.Descriptors(t))
	testsupport.WaitSleepers(t, mark, 0)
}
