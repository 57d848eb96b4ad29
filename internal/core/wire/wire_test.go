// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// listenVar is the environment variable that makes the test binary listen at a path, and do nothing else.
const listenVar = "OUTRIDER_TEST_LISTEN"

func TestMain(m *testing.M) {
	if path := os.Getenv(listenVar); path != "" {
		if _, err := net.Listen("unix", path); err != nil {
			os.Exit(1)
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test is over
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func pair(t *testing.T) (a, b *Transport) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must.NoError(t, err)
	var conns [2]*Transport
	for i, fd := range fds {
		conns[i], err = FromFD(fd)
		must.NoError(t, err)
		t.Cleanup(conns[i].Shut)
	}
	return conns[0], conns[1]
}

func TestTransport_DeliversDescriptorsWithTheirMessage(t *testing.T) {
	a, b := pair(t)
	for _, text := range []string{"one", "two", "three"} {
		r, w, err := os.Pipe()
		must.NoError(t, err)
		_, err = w.WriteString(text)
		must.NoError(t, err)
		w.Close()
		must.NoError(t, a.Send(text, r))
		r.Close()
	}
	for range 3 {
		var text string
		must.NoError(t, b.Receive(&text))
		files := b.Take(1)
		must.SliceLen(t, 1, files, must.Sprintf("%q came with %d descriptors", text, len(files)))
		got, err := io.ReadAll(files[0])
		files[0].Close()
		must.NoError(t, err)
		test.Eq(t, text, string(got), test.Sprintf("%q came with the descriptor of %q", text, got))
	}
}

// Without an error, the receiver would take the descriptor of the next message for this message.
func TestTransport_EndsWhenADescriptorIsLost(t *testing.T) {
	a, b := pair(t)
	must.NoError(t, a.Send("first", os.Stdin))
	must.NoError(t, a.Send("second", os.Stdin))
	var before unix.Rlimit
	must.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	var text string
	err := b.Receive(&text)
	must.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	test.ErrorIs(t, err, errTruncated, test.Sprintf("%q was received", text))
}

// A message of several MiB with descriptors is sent in parts.
func TestTransport_SendsALargeMessageWithDescriptors(t *testing.T) {
	a, b := pair(t)
	want := strings.Repeat("long ", 1<<20)
	sent := make(chan error, 1)
	go func() {
		var files []*os.File
		for range MaxFDs {
			files = append(files, os.Stdin)
		}
		sent <- a.Send(want, files...)
	}()
	var got string
	must.NoError(t, b.Receive(&got))
	must.NoError(t, <-sent)
	test.Eq(t, want, got, test.Sprintf("%d bytes arrived of %d", len(got), len(want)))
	for _, row := range []struct{ asked, want int }{{0, 0}, {2, 2}, {MaxFDs, MaxFDs - 2}, {1, 0}} {
		files := b.Take(row.asked)
		CloseAll(files)
		test.SliceLen(t, row.want, files, test.Sprintf("%d descriptors", len(files)))
	}
}

const stranger = 65534

func TestAccept_ServesItsOwnUserOnly(t *testing.T) {
	testsupport.NeedRoot(t) // to act as another user as well
	dir, err := os.MkdirTemp("", "wire")
	must.NoError(t, err)
	defer os.RemoveAll(dir)
	must.NoError(t, os.Chmod(dir, 0o777))
	path := filepath.Join(dir, "socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must.NoError(t, err)
	must.NoError(t, os.Chmod(path, 0o777))
	served, ended := make(chan *Transport), make(chan struct{})
	go func() {
		defer close(ended)
		Accept(l, func(w *Transport) { served <- w })
	}()
	testsupport.AsUser(t, stranger, func() error {
		c, err := net.Dial("unix", path)
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, io.EOF) {
			return fmt.Errorf("a stranger's connection was not closed: %w", err)
		}
		return nil
	})
	own, err := Dial(path)
	must.NoError(t, err)
	defer own.Shut()
	(<-served).Shut()

	// without free descriptors Accept waits until some are available
	late, err := net.FileConn(socket(t))
	must.NoError(t, err)
	defer late.Close()
	var before unix.Rlimit
	must.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	raw, err := late.(*net.UnixConn).SyscallConn()
	must.NoError(t, err)
	must.NoError(t, raw.Control(func(fd uintptr) { err = unix.Connect(int(fd), &unix.SockaddrUnix{Name: path}) }))
	must.NoError(t, err)
	time.Sleep(30 * time.Millisecond)
	must.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	(<-served).Shut()

	l.Close()
	<-ended
	testsupport.AsUser(t, stranger, func() error {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	w, err := Dial(path)
	test.ErrorContains(t, err, "runs as user 65534", test.Sprintf("a stranger's socket: %v", w))
	test.NoError(t, own.OwnPeer())
	own.Shut()
	test.Error(t, own.OwnPeer(), test.Sprint("a closed connection has a peer"))
}

// socket returns a socket that is not connected.
func socket(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must.NoError(t, err)
	f := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { f.Close() })
	return f
}

func TestKillPeer_FindsAProcessByItsPidOnOldKernels(t *testing.T) {
	cmd, path := listener(t)
	c := dial(t, path)
	fd, err := c.peerByPid()
	must.NoError(t, err)
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	defer pidfd.Close()
	must.NoError(t, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
	test.EqError(t, cmd.Wait(), "signal: killed", test.Sprint("end of the process"))
	fd, err = c.peerByPid()
	test.ErrorIs(t, err, ErrPeerGone, test.Sprintf("pidfd of a dead peer: %d", fd))
}

func listener(t *testing.T) (cmd *exec.Cmd, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "socket")
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), listenVar+"="+path)
	stdin, err := cmd.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	return cmd, path
}

func dial(t *testing.T, path string) *Transport {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			w := New(c)
			t.Cleanup(w.Shut)
			return w
		}
		must.False(t, time.Now().After(end), must.Sprint(err))
	}
}

func TestKillPeer_KillsAListenerThatDoesNotAccept(t *testing.T) {
	cmd, path := listener(t)
	c := dial(t, path)
	must.NoError(t, c.OwnPeer())
	must.NoError(t, unix.Kill(cmd.Process.Pid, unix.SIGSTOP))
	pidfd, err := c.KillPeer()
	must.NoError(t, err)
	defer pidfd.Close()
	if err := cmd.Wait(); cmd.ProcessState.Sys() == nil || err == nil || err.Error() != "signal: killed" {
		t.Errorf("the listener ended with %v", err)
	}
	again, err := c.KillPeer()
	test.ErrorIs(t, err, ErrPeerGone, test.Sprintf("a second kill: %v", again))
}

// client returns a client and the server's end of its connection.
func client(t *testing.T) (c *Client[int], server *Transport) {
	mine, its := pair(t)
	c = &Client[int]{
		Event: func(int) {}, Needed: func() bool { return false }, Log: t.Logf, WriteTime: time.Minute,
	}
	c.Dial = func(context.Context) (*Conn[int], error) { return c.Open(mine), nil }
	return c, its
}

func TestClient_ReturnsErrLostIfItsConnectionIsLost(t *testing.T) {
	c, server := client(t)
	lost := false
	c.Lost = func() { lost = true }
	conn, err := c.Connect(context.Background())
	must.NoError(t, err)
	go func() {
		_, _ = receive[int](server)
		server.Close()
	}()
	_, err = conn.Call(context.Background(), 1)
	must.ErrorIs(t, err, ErrLost, must.Sprint("the call under way"))
	must.Nil(t, c.Current(), must.Sprint("the lost connection is still current"))
	must.True(t, lost, must.Sprint("Lost was not called before the next connection"))
	_, err = conn.Call(context.Background(), 2)
	must.ErrorIs(t, err, ErrLost, must.Sprint("the next call"))
}

func TestServe_AnswersEachRequestAndClosesItsFiles(t *testing.T) {
	c, server := client(t)
	served := make(chan bool)
	gone := false
	peer := NewPeer(server)
	go func() {
		defer close(served)
		Serve(peer, func(n *int, files []*os.File) (any, []*os.File) {
			if len(files) != 1 {
				t.Errorf("%d files came with request %d", len(files), *n)
				return 0, nil
			}
			fd, err := unix.Dup(int(files[0].Fd()))
			test.NoError(t, err)
			return 10 * *n, []*os.File{os.NewFile(uintptr(fd), "reply")}
		}, func() { gone = true })
	}()
	conn, err := c.Connect(context.Background())
	must.NoError(t, err)
	null, err := os.Open(os.DevNull)
	must.NoError(t, err)
	defer null.Close()
	before, err := os.ReadDir("/proc/self/fd")
	must.NoError(t, err)
	for n := range 10 {
		r, err := conn.Call(context.Background(), n, null)
		must.NoError(t, err)
		must.Eq(t, 10*n, r.Body)
		must.Len(t, 1, r.Files)
		CloseAll(r.Files)
	}
	conn.Close()
	<-served
	test.True(t, gone, test.Sprint("gone was called"))
	test.True(t, peer.Event(1), test.Sprint("the event was not queued"))
	after, err := os.ReadDir("/proc/self/fd")
	must.NoError(t, err)
	test.LessEq(t, len(before), len(after), test.Sprint("open descriptors"))
}
