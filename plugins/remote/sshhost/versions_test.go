// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// otherProgram is this program as another build.
func otherProgram(t *testing.T) string {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	must.NoError(t, err)
	defer from.Close()
	path := filepath.Join(t.TempDir(), "outrider-shim-other")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	must.NoError(t, err)
	_, err = io.Copy(to, from)
	must.NoError(t, err)
	must.NoError(t, to.Close())
	return path
}

// A node with a newer plugin takes a task over from one with an older, whose shim goes on.
func TestUpgrade_KeepsTasksAndOlderShims(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	old, stays := m.start(t, trap), m.start(t, trap)
	old.says("ready\n")
	stays.says("ready\n")
	supervisor := m.processes("outrider-supervisor supervise")
	watched := make(chan *endpoint.Record, 1)
	go func() {
		r, err := stays.h.Watch(t.Context(), stays.ref)
		if err != nil {
			r = &endpoint.Record{Reason: err.Error()}
		}
		watched <- r
	}()
	program := func(pid int) string {
		path, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		must.NoError(t, err)
		return path
	}
	must.Len(t, 1, supervisor)
	before := program(supervisor[0])

	m.program = otherProgram(t)
	newer := m.host()
	r, err := newer.Take(t.Context(), old.ref, endpoint.Owner{TaskID: "b"})
	must.NoError(t, err)
	must.NoError(t, newer.Signal(t.Context(), r.Ref(), "SIGUSR1"))
	r, err = newer.Watch(t.Context(), r.Ref())
	must.NoError(t, err)
	must.Eq(t, 7, r.Exit.Code)
	must.Eq(t, supervisor, m.processes("outrider-supervisor supervise"), must.Sprint("it was not upgraded in place"))
	must.NotEq(t, before, program(supervisor[0]))

	m.program = ""
	must.NoError(t, stays.h.Signal(t.Context(), stays.ref, "SIGUSR1"))
	r = <-watched
	must.NotNil(t, r.Exit, must.Sprintf("%+v", r))
	must.Eq(t, 7, r.Exit.Code)
}

// frozen is a connection on which at some time nothing comes through any more, and no end.
type frozen struct {
	net.Conn
	once sync.Once
	ice  chan struct{}
	over chan struct{} // closed by Close
}

func (f *frozen) wait() bool {
	select {
	case <-f.ice:
		<-f.over
		return true
	default:
		return false
	}
}

func (f *frozen) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if f.wait() {
		return 0, net.ErrClosed
	}
	return n, err
}

func (f *frozen) Write(b []byte) (int, error) {
	select {
	case <-f.ice:
		return len(b), nil // into the buffer of a kernel
	default:
		return f.Conn.Write(b)
	}
}

// Close leaves the other end as it is.
func (f *frozen) Close() error {
	f.once.Do(func() { close(f.over) })
	select {
	case <-f.ice:
		return nil
	default:
		return f.Conn.Close()
	}
}

// Neither side waits for the other without an end.
func TestLink_ThatIsDeadIsFoundByBothSides(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	ice := make(chan struct{})
	var conns []*frozen
	m.pass = func(c net.Conn) net.Conn {
		f := &frozen{Conn: c, ice: ice, over: make(chan struct{})}
		conns = append(conns, f)
		return f
	}
	o := m.start(t, "exec sleep 1000")
	watched := make(chan error, 1)
	go func() {
		_, err := o.h.Watch(t.Context(), o.ref)
		watched <- err
	}()
	time.Sleep(200 * time.Millisecond)
	close(ice)
	must.ErrorIs(t, <-watched, endpoint.ErrUnreachable)
	m.pass = nil
	must.NoError(t, o.h.Renew(t.Context(), o.ref, endpoint.Mutable{}))
	testsupport.Within(t, time.Minute, func() error {
		if n := len(m.processes("outrider-shim")); n != 1 {
			return fmt.Errorf("%d shims run", n)
		}
		return nil
	})
	for _, c := range conns {
		c.Conn.Close()
	}
}
