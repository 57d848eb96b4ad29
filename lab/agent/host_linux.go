// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// markVar is an environment variable of the agent that all its processes inherit. Its value is the agent's directory.
const markVar = "OUTRIDER_LAB_DIR"

// Mark returns NAME=VALUE of an environment variable: removing the agent in dir kills every process that has it.
func Mark(dir string) string {
	if real, err := resolve(dir); err == nil {
		dir = real
	}
	return markVar + "=" + dir
}

// hostAgent is an agent that is a process of this machine.
type hostAgent struct{ *record }

var _ Agent = (*hostAgent)(nil)

func newHost(r *record) *hostAgent {
	r.layout = r.newLayout(filepath.Join(r.info.Dir, "data"), stateDir(r.info.Dir))
	r.layout.Bind, r.layout.Interface = "127.0.0.1", "lo" // loopback, also for the ports of jobs
	return &hostAgent{r}
}

func (a *hostAgent) first(ctx context.Context, _ Options) error {
	err := errors.Join(os.MkdirAll(a.DataDir(), 0o755), makeStateDir(a.StateDir()))
	if err != nil {
		return err
	}
	return a.Start(ctx)
}

func (a *hostAgent) Start(ctx context.Context) error {
	if a.process().alive() {
		return nil
	}
	log, err := os.OpenFile(a.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("failed to open the agent's log: %w", err)
	}
	defer log.Close()

	cmd := exec.Command(a.info.Binary, a.arguments()...)
	cmd.Dir = a.info.Dir
	cmd.Env = environment(os.Environ(), a.info.Dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // ^C in this terminal must not reach the agent
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to start the agent: %w", err)
	}
	p, err := task.Identify(cmd.Process.Pid)
	go cmd.Wait() // reaps the agent if it exits before this program
	if err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	a.info.Process = p
	return a.info.write()
}

// environment returns env for the agent in dir. It omits variables that would make agents differ between machines.
func environment(env []string, dir string) []string {
	var out []string
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case strings.HasPrefix(name, "NOMAD_"), strings.HasPrefix(name, "CONSUL_"), strings.HasPrefix(name, "VAULT_"):
		case name == "AWS_CA_BUNDLE": // the agent does not start if the file cannot be read
		case name == markVar:
		default:
			out = append(out, v)
		}
	}
	// go-plugin creates its sockets in this directory: Close also removes those that killed plugins have left
	return append(out, "PLUGIN_UNIX_SOCKET_DIR="+stateDir(dir), markVar+"="+dir)
}

func (a *hostAgent) Stop(ctx context.Context) error {
	p := a.process()
	if err := p.signal(unix.SIGINT); err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if p.gone(patience) == nil {
		return nil
	}
	return a.Kill(ctx)
}

func (a *hostAgent) Kill(ctx context.Context) error {
	p := a.process()
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.gone(ctx)
}

func (a *hostAgent) Alive(ctx context.Context) error {
	if a.process().alive() {
		return nil
	}
	return fmt.Errorf("the nomad agent is not running; the end of its log:\n%s", logTail(a))
}

func (a *hostAgent) Close(ctx context.Context) error {
	var jobs error
	if a.process().alive() && a.client != nil && a.info.Server == "" {
		jobs = errors.Join(StopJobs(ctx, a.client, ""), a.waitForRemovals(ctx))
	}
	return errors.Join(jobs, a.Stop(ctx), a.clean(ctx))
}

// waitForRemovals waits for allocations of purged jobs, for at most 20 s. A purge removes them from the server at once,
// so StopJobs does not see them. The client stops their tasks, destroys them, and then removes their directories.
func (a *hostAgent) waitForRemovals(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	err := poll.Until(ctx, 50*time.Millisecond, func() (done bool, err error) {
		known, _, err := a.client.Allocations().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
		if err != nil {
			return false, fmt.Errorf("failed to list allocations: %w", err)
		}
		dirs, err := filepath.Glob(filepath.Join(a.DataDir(), "alloc", uuid))
		removed := slices.ContainsFunc(dirs, func(dir string) bool {
			return !slices.ContainsFunc(known, func(k *api.AllocationListStub) bool { return k.ID == filepath.Base(dir) })
		})
		return !removed, err
	})
	if ctx.Err() != nil {
		return nil // the caller kills the tasks that still run, with the agent
	}
	return err
}

// clean removes everything that the agent may have left. It looks for what exists, so it works no matter how the agent
// ended.
func (a *hostAgent) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	marks := cgroupMarks(a.DataDir(), a.StateDir()) // before killAll, since an exiting supervisor removes its store
	err := errors.Join(killAll(ctx, a.info.Dir), removeCgroups(ctx, marks))
	pool := filepath.Join(a.info.Dir, PoolDir)
	if _, missing := os.Lstat(pool); missing == nil && os.Geteuid() == 0 {
		err = errors.Join(err, zfsfuse.Remove(pool))
	}
	return errors.Join(err, unmountBelow(a.info.Dir), owndir.RemoveAll(a.info.Dir), owndir.RemoveAll(a.StateDir()))
}

func (a *hostAgent) process() process { return process{a.info.Process} }

// FreePorts returns n loopback ports without a listener. They are below the range for outgoing connections
// (net.ipv4.ip_local_port_range: from 32768 on) and the range for Nomad's jobs (min_dynamic_port: from 20000 on), so
// they are still free when a killed agent starts again. This process gets each port only once: an earlier caller may
// not listen on it yet.
func FreePorts(n int) ([]int, error) {
	const first, count, tries = 10000, 10000, 100
	var ports []int
	var err error
	for range tries {
		port := first + rand.IntN(count)
		if _, given := givenPorts.LoadOrStore(port, true); given {
			continue
		}
		l, listenErr := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if listenErr != nil {
			err = listenErr
			continue
		}
		defer l.Close() // bound until all are found, so no other process takes it
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("failed to find a free port: %w", err)
}

// givenPorts has the ports that FreePorts has tried, as keys of type int.
var givenPorts sync.Map
