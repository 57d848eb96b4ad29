// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

// slice is the parent of the commands' cgroups, as systemd's would be.
const slice = "/sys/fs/cgroup/system.slice"

var runs atomic.Int64

// session runs a command. If the host closes the channel before it ends, the command and all that it has started are
// killed.
func session(c ssh.NewChannel) {
	ch, requests, err := c.Accept()
	if err != nil {
		return
	}
	s := &command{Channel: ch, gone: make(chan struct{})}
	defer close(s.gone)
	for r := range requests { // until the channel is closed
		var ok bool
		if r.Type == "exec" {
			var request struct{ Command string }
			var run wire.Run
			if ok = ssh.Unmarshal(r.Payload, &request) == nil && json.Unmarshal([]byte(request.Command), &run) == nil; ok {
				go s.run(&run)
			}
		}
		if r.WantReply {
			r.Reply(ok, nil)
		}
	}
}

// command is a session's command.
type command struct {
	ssh.Channel
	gone chan struct{} // closed when the host has closed the channel
}

// run runs the command and reports to the host how it ended.
func (c *command) run(r *wire.Run) {
	defer c.Close()
	status, err := c.wait(r)
	switch {
	case err != nil:
		c.SendRequest("exit-signal", false, ssh.Marshal(wire.ExitSignal{Signal: wire.NotStarted, Message: err.Error()}))
	case status.Signaled():
		c.SendRequest("exit-signal", false, ssh.Marshal(wire.ExitSignal{Signal: strconv.Itoa(int(status.Signal()))}))
	default:
		c.SendRequest("exit-status", false, ssh.Marshal(wire.ExitStatus{Status: uint32(status.ExitStatus())}))
	}
}

func (c *command) wait(r *wire.Run) (none syscall.WaitStatus, err error) {
	if len(r.Args) == 0 {
		return none, errors.New("no command given")
	}
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	if cmd.Path, err = lookPath(r.Args[0], r.Env); err != nil {
		return none, err
	}
	if _, err := os.Stat(r.Dir); err != nil { // otherwise the error would name the program
		return none, err
	}
	cmd.Err = nil // from exec.Command's search in this process's PATH
	cmd.Env, cmd.Dir = r.Env, r.Dir
	if cmd.Env == nil {
		cmd.Env = []string{} // not this process's
	}
	scope := filepath.Join(slice, fmt.Sprintf("run-%d.scope", runs.Add(1)))
	if err := os.Mkdir(scope, 0o755); err != nil {
		return none, err
	}
	defer os.Remove(scope) // fails if a process lives on in it
	fd, err := unix.Open(scope, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return none, err
	}
	defer unix.Close(fd)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd, Setsid: true}

	var in io.WriteCloser
	var outputs []*output
	for to, w := range map[*io.Writer]io.Writer{&cmd.Stdout: c, &cmd.Stderr: c.Stderr()} {
		ours, theirs, err := os.Pipe()
		if err != nil {
			return none, err
		}
		defer ours.Close()
		defer theirs.Close()
		*to = theirs
		outputs = append(outputs, newOutput(ours, w))
	}
	if r.Stdin {
		if in, err = cmd.StdinPipe(); err != nil {
			return none, err
		}
	}
	if err := cmd.Start(); err != nil {
		return none, err
	}
	// else the end of the output would not be seen
	cmd.Stdout.(*os.File).Close()
	cmd.Stderr.(*os.File).Close()
	for _, o := range outputs {
		go o.pass()
	}
	if in != nil {
		go func() { // ends with the channel
			io.Copy(in, c)
			in.Close()
		}()
	}
	ended := make(chan struct{})
	go func() {
		select {
		case <-c.gone:
			os.WriteFile(filepath.Join(scope, "cgroup.kill"), []byte("1"), 0)
		case <-ended: // processes that it has left live on
		}
	}()
	err = cmd.Wait()
	close(ended)
	for _, o := range outputs {
		o.finish()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return none, err
	}
	return cmd.ProcessState.Sys().(syscall.WaitStatus), nil
}

// output is one output of a command.
type output struct {
	from *os.File
	to   io.Writer
	done chan struct{}
}

func newOutput(from *os.File, to io.Writer) *output { return &output{from, to, make(chan struct{})} }

// pass copies until no process has the other end open.
func (o *output) pass() {
	defer close(o.done)
	io.Copy(o.to, o.from)
}

// finish returns when everything that the ended command has written is passed on. Processes that it has left may hold
// its output open; then the end is when the output is empty. The host may be slow to read.
func (o *output) finish() {
	for range 600 { // a minute, if what it has left running writes all the time
		select {
		case <-o.done:
			return
		case <-time.After(100 * time.Millisecond):
		}
		if o.empty() {
			break
		}
	}
	o.from.Close()
	<-o.done
}

func (o *output) empty() bool {
	left := 0
	conn, err := o.from.SyscallConn()
	if err == nil {
		conn.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return err != nil || left == 0
}

// lookPath finds a program as execvp(3) does with the environment's PATH.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var dirs string
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			dirs = p
		}
	}
	for _, dir := range filepath.SplitList(dirs) {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("there is no program %s in %s", name, dirs)
}
