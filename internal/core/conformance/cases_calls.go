// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	dproto "github.com/hashicorp/nomad/plugins/drivers/proto"
)

// callCases cover statistics, signals and exec.
var callCases = []driverCase{
	{"statistics arrive immediately, with names that Nomad supports", func(c *check) {
		r := c.running("echo > ready; while :; do :; done")
		ch, err := c.TaskStats(c.ctx, r.cfg.ID, time.Hour)
		c.ok(err, "TaskStats")
		u := receive(c, ch, "statistics, which are due immediately and not after the interval")
		if u == nil || u.ResourceUsage == nil || u.ResourceUsage.MemoryStats == nil || u.ResourceUsage.CpuStats == nil {
			c.fail("got %+v", u)
		}
		memory, cpu := u.ResourceUsage.MemoryStats, u.ResourceUsage.CpuStats
		for _, name := range append(slices.Clone(memory.Measured), cpu.Measured...) {
			if !slices.Contains(measured, name) {
				c.fail("%q is not the name of a statistic", name)
			}
		}
		if len(memory.Measured) == 0 || len(cpu.Measured) == 0 {
			c.fail("no statistic is listed as measured, so Nomad shows none: memory %v, CPU %v", memory.Measured, cpu.Measured)
		}
		if memory.Usage+memory.RSS == 0 {
			c.fail("a running task uses no memory: %+v", memory)
		}
		c.note("memory: %s; CPU: %s", strings.Join(memory.Measured, ", "), strings.Join(cpu.Measured, ", "))
	}},
	{"statistics continue until the task ends", func(c *check) {
		r := c.running(sleeping)
		ch, err := c.TaskStats(c.ctx, r.cfg.ID, 100*time.Millisecond)
		c.ok(err, "TaskStats")
		for range 3 {
			receive(c, ch, "statistics")
		}
		r.destroy()
		for end := time.After(soon); ; {
			select {
			case _, open := <-ch:
				if open {
					continue
				}
			case <-end:
				c.fail("the stream is still open %s after the task was destroyed", soon)
			}
			break
		}
	}},
	{"SignalTask reaches the task, which keeps running", func(c *check) {
		if !c.caps.SendSignals {
			c.notApplicable("the driver declares no support for signals")
		}
		r := c.running(`trap 'echo hup >> got' HUP; trap 'echo usr2 >> got' USR2; echo > ready
			while :; do sleep 0.1; done`)
		c.ok(c.SignalTask(r.cfg.ID, "SIGHUP"), "SignalTask")
		r.wantRunning("SIGHUP, which it handles,")
		c.until("the task gets SIGHUP", func() bool { return r.read("got") == "hup" })
		c.ok(c.SignalTask(r.cfg.ID, "SIGUSR2"), "SignalTask")
		c.until("the task gets SIGUSR2", func() bool { return r.read("got") == "hup\nusr2" })
	}},
	{"a signal that does not exist is an error", func(c *check) {
		r := c.running(sleeping)
		err := c.SignalTask(r.cfg.ID, "SIGNONE")
		time.Sleep(300 * time.Millisecond)
		r.wantRunning("that")
		if err == nil {
			c.fail("SignalTask succeeded")
		}
	}},
	{"calls for an unknown task return errors", func(c *check) {
		var succeeded []string
		for call, do := range map[string]func() error{
			"InspectTask": func() error { _, err := c.InspectTask(unknown); return err },
			"SignalTask":  func() error { return c.SignalTask(unknown, "SIGHUP") },
			"ExecTask":    func() error { _, err := c.ExecTask(unknown, []string{"/bin/true"}, time.Second); return err },
			"TaskStats": func() error {
				ch, err := c.TaskStats(c.ctx, unknown, time.Second)
				if err != nil {
					return err
				}
				if u := <-ch; u == nil {
					return io.EOF
				}
				return nil
			},
		} {
			if do() == nil {
				succeeded = append(succeeded, call)
			}
		}
		slices.Sort(succeeded)
		if len(succeeded) > 0 {
			c.fail("no error from %s", strings.Join(succeeded, ", "))
		}
	}},
	{"ExecTask runs in the task, and returns output and code", func(c *check) {
		r := c.needExec()
		got, err := c.ExecTask(r.cfg.ID, []string{"/bin/sh", "-c", "echo out; echo err >&2; exit 5"}, soon)
		c.ok(err, "ExecTask")
		if got == nil || got.ExitResult == nil || got.ExitResult.ExitCode != 5 {
			c.fail("got %+v", got)
		}
		if all := string(got.Stdout) + string(got.Stderr); !strings.Contains(all, "out") || !strings.Contains(all, "err") {
			c.fail("the output is %q", all)
		}
	}},
	{"ExecTask has the environment of its task", func(c *check) {
		r := c.needExec()
		got, err := c.ExecTask(r.cfg.ID, []string{"/bin/sh", "-c", "echo $OUTRIDER_CONFORMANCE"}, soon)
		c.ok(err, "ExecTask")
		if out := strings.TrimSpace(string(got.Stdout)); "OUTRIDER_CONFORMANCE="+out != r.marker {
			c.fail("the variable is %q", out)
		}
	}},
	{"ExecTask ends a command at the timeout", func(c *check) {
		r := c.needExec()
		_, err := c.ExecTask(r.cfg.ID, []string{"/bin/sh", "-c", "sleep 1000; exit 0"}, time.Second)
		c.note("%v", err)
		c.until("the command ends", func() bool {
			return !strings.Contains(commandLines(r.pids()), "exit 0")
		})
		if !strings.Contains(commandLines(r.pids()), "sleep 2000") {
			c.fail("the task itself ended")
		}
	}},
	{"an exec session has input, output and an exit code", func(c *check) {
		r := c.needExec()
		s := c.exec(r, "read line; echo \"got $line\"; cat; exit 4", "hello\n", "more\n")
		out, code := s.result(c)
		if out != "got hello\nmore\n" || code != 4 {
			c.fail("output %q, code %d", out, code)
		}
	}},
	{"an exec session ends with its client", func(c *check) {
		r := c.needExec()
		s := c.exec(r, "sleep 3000 & echo started; wait")
		c.until("the session starts", func() bool { return strings.Contains(s.output(), "started") })
		s.cancel()
		c.until("the processes of the session end", func() bool {
			return !strings.Contains(commandLines(r.pids()), "sleep 3000")
		})
	}},
}

// measured are the names of statistics that Nomad's protocol supports.
var measured = []string{
	"RSS", "Cache", "Swap", "Usage", "Max Usage", "Kernel Usage", "Kernel Max Usage",
	"System Mode", "User Mode", "Total Ticks", "Throttled Periods", "Throttled Time", "Percent",
}

// needExec starts a task in which ExecTask can run commands. It ends the case if the driver does not support exec.
func (c *check) needExec() *run {
	if !c.caps.Exec {
		c.notApplicable("the driver declares no support for exec")
	}
	r := c.startTask("echo > ready; exec sleep 2000")
	r.ready()
	return r
}

// session is a session of `nomad alloc exec`, without a terminal.
type session struct {
	ctx    context.Context
	cancel context.CancelFunc
	input  []string
	done   chan error

	mu   sync.Mutex
	out  strings.Builder
	code *int
}

// exec starts a session that runs a script. The strings in input are sent to the session's standard input, followed by
// EOF. If there are none, the standard input stays open.
func (c *check) exec(r *run, script string, input ...string) *session {
	driver, ok := c.DriverPlugin.(drivers.ExecTaskStreamingRawDriver)
	if !ok {
		c.fail("Nomad's client has no exec sessions")
	}
	s := &session{input: input, done: make(chan error, 1)}
	s.ctx, s.cancel = context.WithCancel(c.ctx)
	go func() {
		s.done <- driver.ExecTaskStreamingRaw(s.ctx, r.cfg.ID, []string{"/bin/sh", "-c", script}, false, s)
	}()
	return s
}

// Send is called by Nomad's client with each message from the plugin.
func (s *session) Send(m *drivers.ExecTaskStreamingResponseMsg) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Write(m.GetStdout().GetData())
	if m.Exited {
		code := int(m.GetResult().GetExitCode())
		s.code = &code
	}
	return nil
}

// Recv is called by Nomad's client for the next message to the plugin.
func (s *session) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	if s.input == nil {
		<-s.ctx.Done()
		return nil, io.EOF
	}
	stdin := &dproto.ExecTaskStreamingIOOperation{Close: true}
	if len(s.input) > 0 {
		stdin = &dproto.ExecTaskStreamingIOOperation{Data: []byte(s.input[0])}
		s.input = s.input[1:]
	} else {
		s.input = nil
	}
	return &dproto.ExecTaskStreamingRequest{Stdin: stdin}, nil
}

func (s *session) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

func (s *session) result(c *check) (out string, code int) {
	c.ok(receive(c, s.done, "end of the session"), "ExecTaskStreaming")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.code == nil {
		c.fail("the session ended without an exit code")
	}
	return s.out.String(), *s.code
}
