// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

const strangerUID = 65534

// stranger listens on the supervisor's socket as another user, and records what it receives.
type stranger struct {
	listener *net.UnixListener
	received chan []byte // all bytes of a connection, once it has ended
}

func listenAsStranger(t *testing.T, path string) *stranger {
	t.Helper()
	s := &stranger{received: make(chan []byte, 1000)}
	testsupport.AsUser(t, strangerUID, func() (err error) {
		s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		return err
	})
	s.listener.SetUnlinkOnClose(false) // when it closes, another listener uses the path
	go func() {
		defer close(s.received)
		for {
			c, err := s.listener.AcceptUnix()
			if err != nil {
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second)) // in case a client sends something and stays connected
			b, _ := io.ReadAll(c)
			c.Close()
			s.received <- b
		}
	}()
	return s
}

// end closes the listener. It returns the number of connections, and everything that they sent.
func (s *stranger) end() (connections int, all string) {
	s.listener.Close()
	for b := range s.received {
		connections++
		all += string(b)
	}
	return connections, all
}

// The directory belongs to this user, but the process that listens on the socket in it belongs to another user.
func TestClient_SendsNothingToAStrangersSocket(t *testing.T) {
	testsupport.NeedRoot(t)
	h := newHost(t, withoutCgroup)
	must.NoError(t, os.MkdirAll(h.store.Dir, 0o700))
	for dir := h.store.Dir; dir != h.dir; dir = filepath.Dir(dir) {
		must.NoError(t, os.Chmod(dir, 0o777))
	}
	s := listenAsStranger(t, h.store.Socket())
	for dir := h.store.Dir; dir != h.dir; dir = filepath.Dir(dir) {
		must.NoError(t, os.Chmod(dir, 0o755))
	}
	nc, err := dialOwn(h.store)
	if err == nil {
		nc.Close()
		t.Fatal("the connection was accepted as the supervisor's")
	}
	test.StrContains(t, err.Error(), "at the other end of the socket runs as user 65534",
		test.Sprintf("%q does not name the user", err))
	test.SliceEmpty(t, <-s.received, test.Sprint("received"))
	c := h.client()
	st := h.shell("exit 3", func(st *task.State) { st.Command.Env = append(st.Command.Env, "SECRET=x") })
	h.launch(c, st) // starts a new supervisor, which replaces the socket
	h.ends(c, st.ID, task.Exit{Code: 3})
	h.destroy(c, st.ID)
	_, all := s.end()
	test.Eq(t, "", all, test.Sprint("received"))
}

// The directory, or one above it, belongs to another user.
func TestSupervisor_RefusesAStrangersStateDirectory(t *testing.T) {
	testsupport.NeedRoot(t)
	for name, whose := range map[string]func(store string) string{
		"the directory itself": func(store string) string { return store },
		"a directory above it": filepath.Dir,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, withoutCgroup)
			must.NoError(t, os.MkdirAll(h.store.Dir, 0o755))
			must.NoError(t, os.Chmod(h.store.Dir, 0o777))
			s := listenAsStranger(t, h.store.Socket())
			must.NoError(t, os.Chmod(h.store.Dir, 0o755))
			must.NoError(t, os.Lchown(whose(h.store.Dir), strangerUID, strangerUID))
			_, err := h.client().Launch(ctx(t), h.shell("exit 3"))
			want := "state directory can't be used: " + whose(h.store.Dir) + " belongs to user 65534, "
			test.ErrorContains(t, err, want, test.Sprint("error"))
			n, all := s.end()
			test.Eq(t, 0, n, test.Sprintf("%d connections, received %q", n, all))
			_, err = lockDir(h.store.Dir)
			test.ErrorContains(t, err, want, test.Sprint("the supervisor's error"))
			must.NoError(t, os.RemoveAll(filepath.Dir(h.store.Dir)))
		})
	}
}

// The directory's mode keeps other users out. If the mode were changed, the supervisor would still refuse them.
func TestSupervisor_RefusesAStrangersConnection(t *testing.T) {
	testsupport.NeedRoot(t)
	h := newHost(t, withoutCgroup)
	c := h.client()
	st := h.launch(c, h.shell("exec sleep 1000"))
	for dir := h.store.Dir; dir != h.dir; dir = filepath.Dir(dir) {
		must.NoError(t, os.Chmod(dir, 0o755))
	}
	must.NoError(t, os.Chmod(h.store.Socket(), 0o777))
	var nc *net.UnixConn
	testsupport.AsUser(t, strangerUID, func() (err error) {
		nc, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: h.store.Socket(), Net: "unix"})
		return err
	})
	defer nc.Close()
	must.NoError(t, nc.SetDeadline(time.Now().Add(time.Minute)))
	order, err := json.Marshal(&wire.Message[request]{Seq: 1, Body: request{Op: opKill, ID: st.ID}})
	must.NoError(t, err)
	_, _ = nc.Write(order) // the other end may be closed already
	b, err := io.ReadAll(nc)
	if len(b) > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("answered %q, %v", b, err)
	}
	must.Nil(t, c.Exit(st.ID), must.Sprint("the task has ended"))
	test.True(t, st.Identity.Alive(), test.Sprint("the task has ended"))
	h.destroy(c, st.ID)
}

func TestSupervisor_RefusesAStrangersLogFile(t *testing.T) {
	for name, row := range map[string]struct {
		arrange func(t *testing.T, other, log string)
		ok      bool
	}{
		"no file":     {func(*testing.T, string, string) {}, true},
		"our file":    {func(t *testing.T, _, log string) { must.NoError(t, os.WriteFile(log, nil, 0o600)) }, true},
		"a link":      {func(t *testing.T, other, log string) { must.NoError(t, os.Symlink(other, log)) }, false},
		"a hard link": {func(t *testing.T, other, log string) { must.NoError(t, os.Link(other, log)) }, false},
		"a FIFO":      {func(t *testing.T, _, log string) { must.NoError(t, unix.Mkfifo(log, 0o600)) }, false},
		"a directory": {func(t *testing.T, _, log string) { must.NoError(t, os.Mkdir(log, 0o700)) }, false},
		"a stranger's file": {func(t *testing.T, _, log string) {
			testsupport.NeedRoot(t)
			must.NoError(t, os.WriteFile(log, nil, 0o666))
			must.NoError(t, os.Chown(log, strangerUID, strangerUID))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			store := task.Store{Dir: t.TempDir()}
			other := filepath.Join(t.TempDir(), "other")
			must.NoError(t, os.WriteFile(other, nil, 0o600))
			row.arrange(t, other, store.Log())
			f, err := openLog(store)
			if err == nil {
				_, err = f.WriteString("x")
				f.Close()
			}
			test.Eq(t, row.ok, (err == nil), test.Sprintf("error %v", err))
			b, err := os.ReadFile(other)
			must.NoError(t, err, must.Sprint("content of the other file"))
			test.SliceEmpty(t, b, test.Sprint("content of the other file"))
		})
	}
}
