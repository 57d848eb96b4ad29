// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
)

const help = `outrider-shim runs tasks on this host for nomad-driver-remote, which copies it here and starts it
over SSH; it is not run by hand.

  serve -state-dir DIR  serve one client over standard input and output
  owns -state-dir DIR   fail if DIR is the directory of another host
  version               print which build it is
  help                  print this
`

// Main is the program, with its arguments, and returns its exit code.
func Main(args []string) int {
	if len(args) == 0 {
		args = []string{""}
	}
	switch args[0] {
	case "serve", "owns":
		flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
		dir := flags.String("state-dir", "", "the directory of tasks, absolute")
		idle := flags.Duration("idle", 0, "how long the supervisor stays without a task; 0s for its default")
		if flags.Parse(args[1:]) != nil {
			return 2
		}
		if err := serve(*dir, *idle, args[0] == "owns"); err != nil {
			fmt.Fprintln(os.Stderr, "outrider-shim:", err)
			return 1
		}
		return 0
	case "version":
		return version()
	case "help", "-h", "-help", "--help":
		fmt.Print(help)
		return 0
	}
	fmt.Fprint(os.Stderr, help)
	return 2
}

// ownBuild is a sum of the program, by which two builds are told apart.
var ownBuild = sync.OnceValues(func() (string, error) {
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer program.Close()
	build, _, err := supervisor.BuildOfReader(program)
	return build, err
})

func version() int {
	build, err := ownBuild()
	if err != nil {
		fmt.Fprintln(os.Stderr, "outrider-shim:", err)
		return 1
	}
	fmt.Printf("outrider-shim, build %s\nby %s for %s/%s\n", build, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return 0
}

// serve serves, or only looks whose the directory is.
func serve(dir string, idle time.Duration, look bool) error {
	// a client that is gone is an error of a write, and no end in the middle of a call; Notify and
	// not Ignore, since ignored signals are inherited
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	s, err := New(Config{StateDir: dir, Idle: idle, Log: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, time.Now().UTC().Format(time.RFC3339)+" "+format+"\n", args...)
	}})
	if err != nil {
		return err
	}
	defer s.Close()
	if look {
		return s.bind()
	}
	if _, err := os.Stdout.WriteString(protocol.Banner); err != nil {
		return err
	}
	return s.Serve(&stdio{})
}

// stdio is this process's standard input and output as a connection. It has no deadlines: the
// process ends when it is closed.
type stdio struct{ once sync.Once }

func (c *stdio) Read(b []byte) (int, error)  { return os.Stdin.Read(b) }
func (c *stdio) Write(b []byte) (int, error) { return os.Stdout.Write(b) }

func (c *stdio) Close() error {
	c.once.Do(func() {
		go func() { // may wait for a read that is under way
			_ = os.Stdin.Close()
			_ = os.Stdout.Close()
		}()
	})
	return nil
}

func (c *stdio) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "stdio", Net: "unix"} }
func (c *stdio) RemoteAddr() net.Addr             { return c.LocalAddr() }
func (c *stdio) SetDeadline(time.Time) error      { return nil }
func (c *stdio) SetReadDeadline(time.Time) error  { return nil }
func (c *stdio) SetWriteDeadline(time.Time) error { return nil }
