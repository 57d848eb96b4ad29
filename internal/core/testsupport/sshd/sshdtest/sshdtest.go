// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package sshdtest runs a private OpenSSH server until the end of a test.
package sshdtest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
)

// Server is a running server.
type Server struct {
	sshd.Server
	Host string
	User string // to log in as
	Home string // the user's home directory
	Dir  string // contains the server's files; its log is the file "log"

	t     testing.TB
	lines []string // of sshd_config
	env   []string
	shell string
	UID   int
	cmd   *exec.Cmd
	ended chan struct{}
}

// Option changes how a server starts.
type Option func(*Server)

// Config sets lines of sshd_config(5), such as "MaxSessions 1" or "ForceCommand /bin/true".
func Config(lines ...string) Option {
	return func(s *Server) { s.lines = append(s.lines, lines...) }
}

// Env sets environment variables of sessions, NAME=VALUE.
func Env(variables ...string) Option {
	return func(s *Server) { s.env = append(s.env, variables...) }
}

// Shell sets the login shell, by default /bin/sh. It needs root.
func Shell(path string) Option {
	return func(s *Server) { s.shell = path }
}

// Unprivileged lets the test log in as an unprivileged user "remote". It needs root.
func Unprivileged() Option {
	return func(s *Server) {
		testsupport.NeedRoot(s.t)
		s.User, s.UID = "remote", 54321
	}
}

// mark is an environment variable that identifies the processes of sessions.
const mark = "OUTRIDER_SSHDTEST"

// Start starts a server and waits until it responds. If the test runs as root, the user that logs in has an empty home
// directory, so no profile of the machine is executed. Only sshd and its children see this user, in a file that is
// mounted at /etc/passwd.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	current, err := user.Current()
	must.NoError(t, err)
	s := &Server{
		t: t, Host: "127.0.0.1", User: current.Username, Home: current.HomeDir, Dir: t.TempDir(), shell: "/bin/sh",
	}
	s.env = []string{mark + "=" + s.Dir}
	for _, option := range options {
		option(s)
	}
	s.lines = append(s.lines, "SetEnv "+strings.Join(s.env, " ")) // sshd ignores any later SetEnv
	if os.Geteuid() == 0 {
		s.makeAccount()
	}
	t.Cleanup(s.clean)
	for range 10 { // another process may take the free port first
		s.Port = freePort(t)
		if err = s.launch(); err == nil {
			return s
		}
	}
	t.Fatal(err)
	return nil
}

func (s *Server) makeAccount() {
	s.Home = filepath.Join(s.Dir, "home")
	must.NoError(s.t, os.Chmod(filepath.Dir(s.Dir), 0o755)) // TempDir makes it accessible only to this user
	must.NoError(s.t, os.Mkdir(s.Home, 0o755))
	must.NoError(s.t, os.Chown(s.Home, s.UID, s.UID))
	others, err := os.ReadFile("/etc/passwd")
	must.NoError(s.t, err)
	passwd := fmt.Sprintf("%s:x:%d:%[2]d::%s:%s\n%s", s.User, s.UID, s.Home, s.shell, others) // the first entry counts
	shadow := s.User + ":*:::::::\n"                                                          // not locked
	must.NoError(s.t, os.WriteFile(filepath.Join(s.Dir, "passwd"), []byte(passwd), 0o644))
	must.NoError(s.t, os.WriteFile(filepath.Join(s.Dir, "shadow"), []byte(shadow), 0o600))
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Endpoint returns sshd.Server.Endpoint for the server's user and a port: the port of the server or of a link.
func (s *Server) Endpoint(name, dir string, port int) string {
	at := s.Server
	at.Port = port
	return at.Endpoint(name, dir, s.User)
}

// Address returns host:port.
func (s *Server) Address() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// launch starts the server and returns when it responds or has exited.
func (s *Server) launch() error {
	files, err := sshd.Write(s.Dir, s.Port, s.lines...)
	if errors.Is(err, sshd.ErrMissing) {
		s.t.Skip(err)
	}
	must.NoError(s.t, err)
	s.Server = files
	args := s.Args
	if os.Geteuid() == 0 {
		const mounted = `mount --bind "$0/passwd" /etc/passwd && mount --bind "$0/shadow" /etc/shadow && exec "$@"`
		args = append([]string{"unshare", "--mount", "sh", "-c", mounted, s.Dir}, args...)
	}
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	must.NoError(s.t, err)
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	begun, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent when this thread exits
		defer close(ended)
		err := cmd.Start()
		begun <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	must.NoError(s.t, <-begun)
	s.cmd, s.ended = cmd, ended
	return testsupport.Poll(time.Minute, func() error {
		select {
		case <-ended:
			content, _ := os.ReadFile(log.Name())
			return fmt.Errorf("sshd has exited: %s", content)
		default:
			return s.hello()
		}
	})
}

// hello reads the server's first line.
func (s *Server) hello() error {
	conn, err := net.DialTimeout("tcp", s.Address(), time.Minute)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, err = bufio.NewReader(conn).ReadString('\n')
	return err
}

// Stop kills the server and its processes that serve connections. Programs started by sessions keep running, as when a
// server is restarted.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGSTOP) // the server must not fork while its processes are listed
	for _, pid := range slices.Backward(servers(s.cmd.Process.Pid)) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-s.ended
	s.cmd = nil
}

// Restart starts the server again on the same port. If the server is running, Restart kills it first.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	must.NoError(s.t, s.launch())
}

// clean kills the server and all processes of its sessions, including detached ones.
func (s *Server) clean() {
	s.Stop()
	testsupport.Eventually(s.t, "the sessions of sshd end", func() bool {
		pids := testsupport.ProcessesWith("environ", func(environment string) bool {
			return strings.Contains(environment, mark+"="+s.Dir+"\x00")
		})
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(pids) == 0
	})
	if s.t.Failed() {
		log, err := os.ReadFile(filepath.Join(s.Dir, "log"))
		test.NoError(s.t, err)
		s.t.Logf("sshd:\n%s", log)
	}
}

// servers returns a process and its sshd descendants, parents first.
func servers(pid int) []int {
	found := []int{pid}
	for i := 0; i < len(found); i++ {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", found[i]))
		for _, field := range strings.Fields(string(children)) {
			child, _ := strconv.Atoi(field)
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child))
			if strings.HasPrefix(string(name), "sshd") {
				found = append(found, child)
			}
		}
	}
	return found
}
