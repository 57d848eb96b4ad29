// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// bareServer returns a server without clients and without a collector.
func bareServer(t *testing.T) *server {
	t.Helper()
	return &server{clients: map[*wire.Peer]bool{}, processes: map[string]*process{}, store: task.Store{Dir: t.TempDir()}}
}

// returns fails the test if the function do takes longer than a minute.
func returns(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s did not return within a minute", what)
	}
}

// Closing a mount namespace unmounts its file systems, and one of them may hang. Instead of a namespace, this test uses
// a socket whose close waits until the peer has read everything.
func TestReap_DoesNotWaitForAHungUnmount(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	must.NoError(t, err)
	peer, err := l.Accept()
	must.NoError(t, err)
	defer peer.Close()
	hung, err := conn.(*net.TCPConn).File()
	must.NoError(t, err)
	must.NoError(t, conn.Close())
	fd := int(hung.Fd())
	must.NoError(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 600}))
	must.NoError(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<16))
	}
	must.ErrorIs(t, err, unix.EAGAIN)

	p := newProcess("task")
	p.mounts = hung
	p.pidfd, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must.NoError(t, err)
	s := bareServer(t)
	returns(t, "reap", func() { s.reap(p) })
	test.Nil(t, p.mounts)
	test.Less(t, 0, p.pidfd)
}

func TestFinish_DoesNotRecreateTheDirectoryOfADestroyedTask(t *testing.T) {
	s := bareServer(t)
	p := newTask(&task.State{ID: "task"})
	p.phase = destroyed
	s.finish(p, lost("nobody saw it"))
	_, err := os.Stat(s.store.TaskDir("task"))
	test.ErrorIs(t, err, os.ErrNotExist)
	<-p.done
}

// The kernel limits the number of descriptors that a user can watch with epoll.
func TestLoop_WatchesAProcessThatEpollRefuses(t *testing.T) {
	s := bareServer(t)
	s.loop = &loop{server: s, ep: -1, watched: map[int32]*process{}}
	cmd := exec.Command("/bin/sh", "-c", "exit 7")
	must.NoError(t, cmd.Start())
	id, err := task.Identify(cmd.Process.Pid)
	must.NoError(t, err)
	p := newTask(&task.State{ID: "task"})
	p.identity, p.child = id, true
	p.pidfd, err = id.Open()
	must.NoError(t, err)
	s.loop.addProcess(p)
	returns(t, "the watch", func() { <-p.done })
	test.EqOp(t, 7, p.exit.Code)
	test.MapEmpty(t, s.loop.watched)
}
