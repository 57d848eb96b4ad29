// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// Cluster is a server and its clients, each an agent of its own on this host. The server may be a client, too. A test
// stops, kills and starts each by its own methods.
type Cluster struct {
	Server  Agent
	Clients []Agent
}

// ClusterOptions describe a cluster.
type ClusterOptions struct {
	// Dir holds everything: the server is in Dir/s, the clients are in Dir/c1, Dir/c2 and so on.
	Dir string

	// Server and Clients describe the agents. What is empty in a client's Binary, Env, Progress and Missing is the
	// server's. A client's name is client1, client2 and so on by default.
	Server  Options
	Clients []Options

	// Quick makes a node down that has been silent for about 5 s. By default it takes over 5 min.
	Quick bool

	// Token turns access control on, see Options.
	Token string
}

// QuickHeartbeats is the configuration of a server for which a node is down that has been silent for about 5 s.
const QuickHeartbeats = `
server {
  heartbeat_grace        = "2s"
  min_heartbeat_ttl      = "3s"
  failover_heartbeat_ttl = "10s"
}
`

// RunCluster starts a cluster and waits until all of it is healthy. A failure leaves nothing behind.
func RunCluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	if o.Dir == "" {
		return nil, errors.New("no directory given for the cluster")
	}
	o.Server.Dir, o.Server.Token = filepath.Join(o.Dir, "s"), o.Token
	if o.Quick {
		o.Server.Config += QuickHeartbeats
	}
	server, err := Run(ctx, o.Server)
	if err != nil {
		return nil, fmt.Errorf("the server: %w", err)
	}
	c := &Cluster{Server: server}
	if err := c.join(ctx, o); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, c.Close(ctx))
	}
	return c, nil
}

// join starts the clients, all at the same time.
func (c *Cluster) join(ctx context.Context, o ClusterOptions) error {
	agents, errs := make([]Agent, len(o.Clients)), make([]error, len(o.Clients))
	var all sync.WaitGroup
	for i, client := range o.Clients {
		name := fmt.Sprintf("client%d", i+1)
		client.Dir, client.Token, client.Server = filepath.Join(o.Dir, fmt.Sprintf("c%d", i+1)), o.Token, c.RPC()
		client.Name = cmp.Or(client.Name, name)
		client.Binary = cmp.Or(client.Binary, o.Server.Binary)
		if client.Env == nil {
			client.Env = o.Server.Env
		}
		if client.Progress == nil {
			client.Progress = o.Server.Progress
		}
		if client.Missing == nil {
			client.Missing = o.Server.Missing
		}
		all.Go(func() {
			if agents[i], errs[i] = Run(ctx, client); errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", name, errs[i])
			}
		})
	}
	all.Wait()
	c.Clients = slices.DeleteFunc(agents, func(a Agent) bool { return a == nil })
	return errors.Join(errs...)
}

// OpenCluster returns the cluster that RunCluster started in dir. It returns ErrNone if there is none.
func OpenCluster(ctx context.Context, dir string) (*Cluster, error) {
	server, err := Open(ctx, filepath.Join(dir, "s"))
	if err != nil {
		return nil, err
	}
	c := &Cluster{Server: server}
	for i := 1; ; i++ {
		a, err := Open(ctx, filepath.Join(dir, fmt.Sprintf("c%d", i)))
		if errors.Is(err, ErrNone) {
			return c, nil
		}
		if err != nil {
			return nil, err
		}
		c.Clients = append(c.Clients, a)
	}
}

// RPC is the address at which other clients join, see Options.Server.
func (c *Cluster) RPC() string { return fmt.Sprintf("127.0.0.1:%d", c.Server.Info().RPC) }

// Freeze stops the server's process with SIGSTOP: connections to it are accepted, and nothing answers.
func (c *Cluster) Freeze() error { return Freeze(c.Server) }

// Thaw ends Freeze.
func (c *Cluster) Thaw() error { return Thaw(c.Server) }

// Freeze stops the process of an agent on this host with SIGSTOP. Its plugins and tasks go on.
func Freeze(a Agent) error { return signal(a, unix.SIGSTOP) }

// Thaw ends Freeze.
func Thaw(a Agent) error { return signal(a, unix.SIGCONT) }

func signal(a Agent, s unix.Signal) error { return process{a.Info().Process}.signal(s) }

// Leftovers lists what exists of the cluster now, see Agent.
func (c *Cluster) Leftovers(ctx context.Context) (list []string, err error) {
	for _, a := range c.agents() {
		left, lerr := a.Leftovers(ctx)
		list, err = append(list, left...), errors.Join(err, lerr)
	}
	return list, err
}

// Close stops all jobs, ends all agents, even one that is frozen, and removes everything of them. What is left then
// is an error. A second Close is not an error.
func (c *Cluster) Close(ctx context.Context) error {
	errs := []error{c.Thaw()}
	for _, a := range c.Clients {
		errs = append(errs, Thaw(a))
	}
	if c.Server.Alive(ctx) == nil {
		errs = append(errs, StopJobs(ctx, c.Server.Client()))
	}
	for _, a := range c.agents() { // all, before the first looks for what it may have left
		errs = append(errs, a.Stop(ctx))
	}
	for _, a := range c.agents() {
		errs = append(errs, a.Close(ctx))
	}
	left, err := c.Leftovers(ctx)
	if len(left) > 0 {
		err = errors.Join(err, errors.New("left: "+strings.Join(left, ", ")))
	}
	dir := os.Remove(filepath.Dir(c.Server.Info().Dir))
	if errors.Is(dir, fs.ErrNotExist) {
		dir = nil
	}
	return errors.Join(append(errs, err, dir)...)
}

// agents are all, the server last.
func (c *Cluster) agents() []Agent { return append(slices.Clone(c.Clients), c.Server) }

// NodeID is the id of an agent's node, on this host, empty before its first start.
func NodeID(a Agent) string {
	id, _ := os.ReadFile(filepath.Join(a.DataDir(), "client", "client-id"))
	return string(id)
}

// Drain drains a node. The deadline is when what still runs there is stopped: 0 never, below 0 at once.
func Drain(ctx context.Context, c *api.Client, node string, deadline time.Duration) error {
	spec := &api.DrainSpec{Deadline: deadline}
	return drain(ctx, c, node, &api.DrainOptions{DrainSpec: spec})
}

// Undrain ends a drain, and makes the node eligible.
func Undrain(ctx context.Context, c *api.Client, node string) error {
	return drain(ctx, c, node, &api.DrainOptions{MarkEligible: true})
}

func drain(ctx context.Context, c *api.Client, node string, o *api.DrainOptions) error {
	if _, err := c.Nodes().UpdateDrainOpts(node, o, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return fmt.Errorf("failed to change the drain of node %s: %w", node, err)
	}
	return nil
}
