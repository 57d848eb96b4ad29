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
	if _, err := os.Stat(r.Dir); err != nil { // otherwise the error would name the program
		return none, err
	}
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	cmd.Env, cmd.Dir = r.Env, r.Dir
	if cmd.Env == nil {
		cmd.Env = []string{} // not this process's
	}
	cmd.Stdout, cmd.Stderr = c, c.Stderr()
	cmd.WaitDelay = time.Minute // what it leaves running may hold its output open
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
	if r.Stdin {
		if in, err = cmd.StdinPipe(); err != nil {
			return none, err
		}
	}
	if err := cmd.Start(); err != nil {
		return none, err
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
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return none, err
	}
	return cmd.ProcessState.Sys().(syscall.WaitStatus), nil
}
