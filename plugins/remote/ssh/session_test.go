// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/crypto/ssh"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/simulate/simulatetest"
)

const odd = "a 'b' \"c\" \\d\\ \\\\ $HOME `e` !f! *? {g,h} ~ #i; & | < > ^ % \t ü"

func TestRun_WorksInEveryShell(t *testing.T) {
	for _, name := range []string{"sh", "bash", "fish", "tcsh"} {
		t.Run(name, func(t *testing.T) {
			shell, err := exec.LookPath(name)
			if err != nil {
				t.Skip(err)
			}
			h := simulatetest.New(t, simulate.Options{Shell: shell})
			for _, profile := range []string{".bashrc", ".tcshrc", ".config/fish/config.fish"} {
				path := h.Path(filepath.Join(h.Home(simulate.User), profile))
				must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				must.NoError(t, os.WriteFile(path, []byte("echo Welcome to this host!\necho outrider-\n"), 0o644))
			}
			c := newClient(t, configOf(h))
			const script = `
f() { # a comment
  printf '%s|' "$@"
  printf 'a\nb\\n!\n'
}
f "$@"; cat`
			out, err := c.Run(t.Context(), strings.NewReader("input"), script, odd, "", "x")
			must.NoError(t, err)
			test.Eq(t, odd+"||x|a\nb\\n!\ninput", string(out))

			conn, err := c.Start(t.Context(), "/bin/cat")
			must.NoError(t, err)
			_, err = io.WriteString(conn, "END")
			must.NoError(t, err)
			got := readTo(t, conn, "END")
			test.Eq(t, name != "sh", strings.HasPrefix(got, "Welcome to this host!\n"), test.Sprint(got)) // it reads no profile
			must.NoError(t, conn.Close())
		})
	}
}

// readTo reads up to the end of a text.
func readTo(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var got []byte
	for !bytes.HasSuffix(got, []byte(text)) {
		b := make([]byte, 1)
		_, err := io.ReadFull(r, b)
		must.NoError(t, err, must.Sprintf("after %q", got))
		got = append(got, b...)
	}
	return string(got)
}

// Also for go test -race.
func TestStart_IsClosedDuringAWrite(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	conn, err := newClient(t, configOf(h)).Start(t.Context(), "/bin/cat")
	must.NoError(t, err)
	begun, over := make(chan struct{}), make(chan error)
	go func() {
		_, err := conn.Write([]byte("x"))
		for close(begun); err == nil; {
			_, err = conn.Write([]byte("x"))
		}
		over <- err
	}()
	<-begun
	must.NoError(t, conn.Close())
	must.ErrorIs(t, <-over, io.EOF)
	testsupport.Eventually(t, "the program ends", func() bool {
		all, err := h.Processes()
		return err == nil && len(all) == 0
	})
}

func TestRun_FailureIsTold(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	c := newClient(t, configOf(h))
	for script, want := range map[string]string{
		"echo some; echo x >&2; echo why >&2; exit 3": "it ended with status 3: why",
		"kill -9 $$":                "it was killed by SIGKILL",
		"exec yes":                  "wrote more than 1048576 bytes",
		"head -c 1100000 /dev/zero": "wrote more than 1048576 bytes",
		"exec /no/program":          "it ended with status 127: sh: 1: exec: /no/program: not found",
		"echo to much >&2; yes err | head -c 100000 >&2; false": "it ended with status 1: err",
	} {
		_, err := c.Run(t.Context(), nil, script)
		test.ErrorContains(t, err, want, test.Sprint(script))
	}
	out, err := c.Run(t.Context(), nil, "echo some; exit 3")
	var exit *ExitError
	must.True(t, errors.As(err, &exit))
	test.Eq(t, 3, exit.Status)
	test.Eq(t, "some\n", string(out))

	// a script that does not read its input
	_, err = c.Run(t.Context(), bytes.NewReader(make([]byte, 32<<20)), "true")
	test.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err = c.Run(ctx, nil, "sleep 50")
	test.ErrorContains(t, err, "did not end in time")
	test.ErrorIs(t, err, context.DeadlineExceeded)
	test.Less(t, 5*time.Second, time.Since(begun))
}

func TestRun_TellsAShellThatRunsNothing(t *testing.T) {
	for shell, want := range map[string]string{
		"/usr/sbin/nologin": "This account is currently not available",
		"/bin/true":         "can't run commands",
	} {
		h := simulatetest.New(t, simulate.Options{Shell: shell})
		_, err := newClient(t, configOf(h)).Run(t.Context(), nil, "true")
		test.ErrorContains(t, err, "can't run commands: its login shell or a forced command wrote", test.Sprint(shell))
		test.ErrorContains(t, err, want)
	}
	h := simulatetest.New(t, simulate.Options{Config: []string{"ForceCommand internal-sftp"}})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := newClient(t, configOf(h)).Run(ctx, strings.NewReader("junk"), "true")
	test.ErrorContains(t, err, "can't run commands")
}

func TestStart_EndsWhereAProgramClosesItsOutputAndGoesOn(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	c := newClient(t, configOf(h))
	conn, err := c.Start(t.Context(), "/bin/sh", "-c", "exec >&- 2>&-; sleep 100")
	must.NoError(t, err)
	begun := time.Now()
	_, err = conn.Read(make([]byte, 1))
	must.ErrorIs(t, err, io.EOF)
	must.Less(t, 20*time.Second, time.Since(begun))
	must.NoError(t, conn.Close())
}

func TestStart_TellsHowTheProgramEnded(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	c := newClient(t, configOf(h))
	conn, err := c.Start(t.Context(), "/no/program", "serve")
	must.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	must.ErrorIs(t, err, io.EOF)
	must.ErrorContains(t, err, "it ended with status 127: ")
	must.NoError(t, conn.Close())
	must.NoError(t, conn.Close())
}

func TestSessions_AreAsManyAsTheServerAllows(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{Config: []string{"MaxSessions 10"}})
	c := newClient(t, configOf(h))
	l, err := net.Listen("unix", h.Path("/home/remote/socket"))
	must.NoError(t, err)
	defer l.Close()
	must.NoError(t, os.Chmod(h.Path("/home/remote/socket"), 0o777))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				conn.Close()
			}()
		}
	}()
	var all sync.WaitGroup
	var held []net.Conn
	for range 4 { // long-lived ones
		conn, err := c.Start(t.Context(), "/bin/cat")
		must.NoError(t, err)
		held = append(held, conn)
	}
	for i := range 50 {
		all.Go(func() {
			out, err := c.Run(t.Context(), nil, "sleep 0.02; echo $1", fmt.Sprint(i))
			test.NoError(t, err)
			test.Eq(t, fmt.Sprintln(i), string(out))
		})
		all.Go(func() {
			conn, err := c.Dial(t.Context(), "unix", "/home/remote/socket")
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "hello %d\n", i)
			test.NoError(t, err)
			got := make([]byte, len(fmt.Sprintf("hello %d\n", i)))
			_, err = io.ReadFull(conn, got)
			test.NoError(t, err)
			test.Eq(t, fmt.Sprintf("hello %d\n", i), string(got))
		})
	}
	all.Wait()
	for range 6 {
		conn, err := c.Start(t.Context(), "/bin/cat")
		must.NoError(t, err)
		held = append(held, conn)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = c.Start(ctx, "/bin/cat")
	must.ErrorContains(t, err, "allows no more sessions (MaxSessions)")
	for _, conn := range held {
		must.NoError(t, conn.Close())
	}
	_, err = c.Run(t.Context(), nil, "true")
	must.NoError(t, err)
}

// refusing is a server that opens no channel. It returns how to reach it, and a count of the questions.
func refusing(t *testing.T, reason ssh.RejectionReason) (Config, *atomic.Int32) {
	t.Helper()
	hostFile, hostKey := newKey(t)
	signer, err := readKey(hostFile)
	must.NoError(t, err)
	server := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		return nil, nil
	}}
	server.AddHostKey(signer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	asked := &atomic.Int32{}
	go func() { // ends with the client
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, channels, requests, err := ssh.NewServerConn(conn, server)
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		for c := range channels {
			asked.Add(1)
			_ = c.Reject(reason, "no")
		}
	}()
	file, _ := newKey(t)
	return Config{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, User: "u", KeyFile: file,
		HostKeys: []string{line(hostKey)}}, asked
}

func TestSessions_AreNotAskedForWhereThereAreNone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	config, asked := refusing(t, ssh.Prohibited)
	_, err := newClient(t, config).Start(ctx, "/bin/cat")
	must.ErrorContains(t, err, "allows no sessions: ")
	must.Eq(t, 1, asked.Load())

	config, asked = refusing(t, ssh.ResourceShortage)
	_, err = newClient(t, config).Start(ctx, "/bin/cat")
	must.ErrorContains(t, err, "allows no more sessions (MaxSessions): ")
	must.Between(t, 3, asked.Load(), 10)
}

func TestSessions_LeakNothing(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	c := newClient(t, configOf(h))
	use := func() {
		_, err := c.Run(t.Context(), strings.NewReader("x"), "exit 0")
		must.NoError(t, err)
		conn, err := c.Start(t.Context(), "/bin/true")
		must.NoError(t, err)
		_, err = io.ReadAll(conn)
		must.NoError(t, err)
		must.NoError(t, conn.Close())
		_, err = c.Dial(t.Context(), "unix", "/no/socket")
		must.Error(t, err)
	}
	use()
	goroutines, descriptors := runtime.NumGoroutine(), testsupport.Descriptors(t)
	for range 50 {
		use()
	}
	eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	test.Eq(t, descriptors, testsupport.Descriptors(t))
}

func TestDial_TellsAnEndFromALostConnection(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	c := newClient(t, configOf(h))
	l, err := net.Listen("unix", h.Path("/home/remote/socket"))
	must.NoError(t, err)
	defer l.Close()
	must.NoError(t, os.Chmod(h.Path("/home/remote/socket"), 0o777))
	open := func() (near, far net.Conn) {
		near, err := c.Dial(t.Context(), "unix", "/home/remote/socket")
		must.NoError(t, err)
		far, err = l.Accept()
		must.NoError(t, err)
		_, err = far.Write([]byte("x"))
		must.NoError(t, err)
		_, err = io.ReadFull(near, make([]byte, 1))
		must.NoError(t, err)
		return near, far
	}
	near, far := open()
	must.NoError(t, far.Close())
	_, err = near.Read(make([]byte, 1))
	must.ErrorIs(t, err, io.EOF)

	near, far = open()
	defer far.Close()
	must.NoError(t, h.KillServer())
	_, err = near.Read(make([]byte, 1))
	must.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestDial_TellsWhatTheServerDoesNotAllow(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{Config: []string{
		"AllowStreamLocalForwarding no", "AllowTcpForwarding no",
	}})
	c := newClient(t, configOf(h))
	_, err := c.Dial(t.Context(), "unix", "/var/run/docker.sock")
	test.ErrorContains(t, err, "the server does not allow it (AllowStreamLocalForwarding)")
	_, err = c.Dial(t.Context(), "tcp", "127.0.0.1:1")
	test.ErrorContains(t, err, "does not allow a connection to 127.0.0.1:1 (AllowTcpForwarding)")

	h = simulatetest.New(t, simulate.Options{})
	c = newClient(t, configOf(h))
	_, err = c.Dial(t.Context(), "unix", "/no/socket")
	test.ErrorContains(t, err, "nothing listens at /no/socket on 127.0.0.1, remote may not connect")
}
