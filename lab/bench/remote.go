// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
)

const (
	remote = "remote"
	viaSSH = "raw_exec with ssh"

	remoteTasks  = 30         // of the job whose memory is measured
	outputLines  = 30_000_000 // of seq(1): 258 MB
	outputRounds = 3
)

// remoteHost is this machine, as a host that is reached by SSH.
type remoteHost struct {
	sshd.Server
	dir     string // of the tasks there
	server  *exec.Cmd
	plugin  string
	endAt   context.CancelFunc
	program []string // ssh, up to the command
}

// measureRemote compares tasks of the remote driver with tasks of raw_exec that are an ssh(1) each. Both ends are
// this machine.
func (b *bench) measureRemote(ctx context.Context) error {
	h, err := b.startHost(ctx)
	if errors.Is(err, sshd.ErrMissing) {
		b.note("Tasks on a host are not measured: %v.", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer h.end()
	if err := b.step(func() error { return b.remoteStarts(ctx, h) }, "%d starts on a host", b.pythonStarts); err != nil {
		return err
	}
	c := &cluster{bench: b, marker: fmt.Sprintf("1%07d", os.Getpid())}
	err = b.step(func() (err error) {
		c.agent, err = agent.Run(ctx, agent.Options{
			Runtime: agent.Host, Dir: filepath.Join(b.dir, "remote"), Name: "outrider-bench-remote", Progress: b.steps.Progress,
			Plugins: []agent.Plugin{{Binary: h.plugin, Config: fmt.Sprintf(`api {
				address = "http://127.0.0.1:${http_port}"
			}
			%s`, h.Endpoint("box", h.dir, "root"))}},
		})
		return err
	}, "Starting an agent with a host")
	if err != nil {
		return err
	}
	defer func() { _ = c.close(ctx) }()
	defer endAll(c.sleeper())
	if err := b.step(func() error { return c.remoteMemory(ctx, h) }, "jobs of 1 and %d tasks", remoteTasks); err != nil {
		return err
	}
	return b.step(func() error { return c.remoteOutput(ctx, h) }, "%d lines of output", outputLines)
}

// startHost builds the plugin and starts an SSH server. The caller ends it.
func (b *bench) startHost(ctx context.Context) (_ *remoteHost, err error) {
	root, err := build.Root(".")
	if err != nil {
		return nil, err
	}
	paths, err := build.Builder{Root: root}.All(ctx, remote)
	if err != nil {
		return nil, err
	}
	ports, err := agent.FreePorts(1)
	if err != nil {
		return nil, err
	}
	h := &remoteHost{dir: filepath.Join(b.dir, "host"), plugin: paths[0]}
	keys := filepath.Join(b.dir, "sshd")
	if err := errors.Join(os.Chmod(b.dir, 0o755), os.Mkdir(keys, 0o700)); err != nil {
		return nil, err
	}
	if h.Server, err = sshd.Write(keys, ports[0]); err != nil {
		return nil, err
	}
	ctx, h.endAt = context.WithCancel(ctx)
	h.server = exec.CommandContext(ctx, h.Args[0], h.Args[1:]...)
	if err := h.server.Start(); err != nil {
		return nil, err
	}
	known := filepath.Join(keys, "known_hosts")
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(h.Port))
	h.program = []string{"/usr/bin/ssh", "-q", "-F", "none", "-i", h.KeyFile, "-p", strconv.Itoa(h.Port),
		"-o", "UserKnownHostsFile=" + known, "root@127.0.0.1"}
	text := fmt.Sprintf("[127.0.0.1]:%d %s\n", h.Port, h.HostKey)
	if err := os.WriteFile(known, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return h, wait(ctx, 50*time.Millisecond, func() (bool, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return true, conn.Close()
	})
}

func (h *remoteHost) end() {
	h.endAt()
	_ = h.server.Wait() // "signal: killed"
}

// remoteStarts times starts on a connection that is there.
func (b *bench) remoteStarts(ctx context.Context, h *remoteHost) (err error) {
	s, err := newStarter(filepath.Join(b.dir, "remotestart"))
	if err != nil {
		return err
	}
	defer s.times.Close()
	if _, err := s.probeTask(); err != nil {
		return err
	}
	probe := []string{filepath.Join(s.dir, "probe"), s.fifo}
	there, err := openPlugin(ctx, h.plugin, map[string]any{"endpoint": map[string]any{"box": map[string]any{
		"dir": h.dir, "ssh": map[string]any{
			"host": "127.0.0.1", "port": h.Port, "user": "root", "key_file": h.KeyFile, "host_keys": []string{h.HostKey},
		},
	}}})
	if err != nil {
		return err
	}
	defer func() {
		there.close()
		err = errors.Join(err, supervisorGone(ctx, h.dir))
	}()
	rawDriver, err := openRaw(ctx)
	if err != nil {
		return err
	}
	defer rawDriver.close()
	command := h.over(probe)
	r, err := takeTurns(ctx, b.pythonStarts, []way{
		{remote, s.by(ctx, there, program{config: map[string]any{
			"endpoint": "box", "command": probe[0], "args": probe[1:],
			"on_drain": "stop", "on_lost": "restart", // here is no API that tells what a stop means
		}})},
		{viaSSH, s.by(ctx, rawDriver, program{config: map[string]any{"command": command[0], "args": command[1:]}})},
	})
	if err != nil {
		return err
	}
	l, other := median(r.first[remote]), median(r.first[viaSSH])
	b.note("StartTask to first instruction on a host, median of %d: %s by remote, %s by %s: %s.", b.pythonStarts, ms(l),
		ms(other), viaSSH, ratio(float64(l), float64(other)))
	return nil
}

// over is a command of this machine that runs one on the host.
func (h *remoteHost) over(command []string) []string {
	return append(append([]string{}, h.program...), command...)
}

// onHost describes count tasks on the host, by the remote driver or by an ssh each.
func (c *cluster) onHost(h *remoteHost, way string, count int, command []string) *api.Job {
	driver := remote
	if way == viaSSH {
		driver, command = raw, h.over(command)
	}
	job := c.job(driver, count, command)
	job.TaskGroups[0].EphemeralDisk.SizeMB = new(1000)
	t := job.TaskGroups[0].Tasks[0]
	t.LogConfig = &api.LogConfig{MaxFiles: new(90), MaxFileSizeMB: new(10)}
	if way == remote {
		t.SetConfig("endpoint", "box")
		t.SetConfig("logs", map[string]any{"max_files": 90, "max_file_size": 10})
	}
	return job
}

// endAll ends the processes with these arguments: what an ssh without a terminal has started goes on when that is
// killed.
func endAll(args []string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // not there: it has ended
		if pid, err := strconv.Atoi(e.Name()); err == nil && string(text) == strings.Join(args, "\x00")+"\x00" {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// remoteMemory measures what a task takes on the node.
func (c *cluster) remoteMemory(ctx context.Context, h *remoteHost) error {
	of := map[string]float64{}
	for _, way := range []string{remote, viaSSH} {
		var sums []int
		for _, count := range []int{1, remoteTasks} {
			job := c.onHost(h, way, count, c.sleeper())
			if _, err := c.start(ctx, job); err != nil {
				return err
			}
			sum, err := c.belowAgent(ctx)
			if err != nil {
				return err
			}
			sums = append(sums, sum)
			if err := c.stop(ctx, job); err != nil {
				return err
			}
		}
		of[way] = float64(sums[1]-sums[0]) / (remoteTasks - 1)
	}
	c.note("Memory of one more task on the node (PSS of all processes below the agent): %s by remote, %s by %s: %s.",
		kB(of[remote]), kB(of[viaSSH]), viaSSH, ratio(of[remote], of[viaSSH]))
	return nil
}

// belowAgent is the PSS of all processes below the agent, in kB, the median of several readings.
func (c *cluster) belowAgent(ctx context.Context) (int, error) {
	pid, err := c.agent.PID(ctx)
	if err != nil {
		return 0, err
	}
	var readings []int
	for range c.readings {
		table, err := task.Processes()
		if err != nil {
			return 0, err
		}
		sum := 0
		for _, st := range task.Descendants(table, pid) {
			m, err := memoryOf(st.PID)
			if err != nil && !ended(err) {
				return 0, err
			}
			sum += m[pss]
		}
		readings = append(readings, sum)
	}
	return median(readings), nil
}

// remoteOutput measures how long a task with much output runs.
func (c *cluster) remoteOutput(ctx context.Context, h *remoteHost) error {
	took := map[string]series{}
	for range outputRounds {
		for _, way := range []string{remote, viaSSH} {
			job := c.onHost(h, way, 1, []string{"/usr/bin/seq", "1", strconv.Itoa(outputLines)})
			job.Type = new(api.JobTypeBatch)
			if _, _, err := c.agent.Client().Jobs().Register(job, nil); err != nil {
				return err
			}
			var state *api.TaskState
			err := wait(ctx, 50*time.Millisecond, func() (bool, error) {
				allocs, _, err := c.agent.Client().Jobs().Allocations(*job.ID, false, nil)
				if err != nil || len(allocs) == 0 {
					return false, err
				}
				state = allocs[0].TaskStates["task"]
				return state != nil && state.State == "dead", nil
			})
			if err != nil {
				return err
			}
			if state.Failed {
				return fmt.Errorf("the task of %s failed", way)
			}
			took[way] = append(took[way], state.FinishedAt.Sub(state.StartedAt))
			if err := c.stop(ctx, job); err != nil {
				return err
			}
		}
	}
	l, other := median(took[remote]), median(took[viaSSH])
	c.note("A task with 258 MB of output, median of %d: %s by remote, %s by %s: %.2f times the throughput.", outputRounds,
		ms(l), ms(other), viaSSH, float64(other)/float64(l))
	return nil
}
