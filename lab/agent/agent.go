// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package agent runs private Nomad agents: server and client in one process, with their own directories and loopback
// ports. A lab, a test and a benchmark can run on one machine at the same time without sharing anything.
//
// Run starts an agent, as a process of the host or in a container; both kinds implement Agent. The agent does not use
// `-dev`: it keeps its state, so tasks keep running while it is stopped, killed and started again.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Runtime selects where an agent runs.
type Runtime string

// The runtimes.
const (
	Host      Runtime = "host"      // a process of this machine
	Container Runtime = "container" // a process in a container
)

// Options describe one agent.
type Options struct {
	// Dir has all files of this agent on this machine: configuration, log, plugins and, on the host, data and an
	// optional zfsfuse pool in PoolDir. Run creates the directory, and Close removes it. The plugins' state is in it,
	// too, unless the path would be too long for unix sockets (see Agent.StateDir).
	Dir string

	Runtime Runtime

	// Binary is the path of the nomad program, see nomad.Binary.
	Binary string

	// Plugins are the plugins to load. WaitHealthy waits for them.
	Plugins []Plugin

	// Config is additional agent configuration in HCL, merged over the configuration that this package generates.
	Config string

	// Server is the RPC address of another agent's server, for an agent that is only a client. If empty, the agent has
	// its own server.
	Server string

	// HTTPPort is the port of the API and the web UI on loopback; 0 picks a free one.
	HTTPPort int

	// Name is the node's name; if empty, the host's name.
	Name string

	// Progress, if set, is called to report the current step if the step can take long.
	Progress func(format string, args ...any) `json:"-"`
}

// Plugin is one plugin binary with its configuration.
type Plugin struct {
	Binary string // path; its base name is the plugin's name in Nomad

	// Config is the HCL inside `plugin "NAME" { config { … } }`. It may use ${state_dir} (a directory that only this agent
	// uses), ${host_volume_plugin_dir} (for the agent's host volume plugins) and ${http_port} (of the agent's API).
	Config string

	// HostVolume is the binary's id as a host volume plugin. It is empty for other plugins.
	HostVolume string

	// HostVolumeFile is written to <HostVolume>.hcl next to the host volume plugin; if empty, no file is written.
	HostVolumeFile string
}

// PoolDir is the directory of a zfsfuse pool, inside the directory of an agent on the host.
const PoolDir = "pool"

// Prefixes of a binary's name, by the plugin's kind.
const (
	DriverPrefix = "nomad-driver-"
	DevicePrefix = "nomad-device-"
)

// Name is the plugin's name in agent configuration and log.
func (p Plugin) Name() string { return filepath.Base(p.Binary) }

// Driver returns the name of the plugin's task driver, or an empty string for a device plugin.
func (p Plugin) Driver() string {
	d, ok := strings.CutPrefix(p.Name(), DriverPrefix)
	if !ok {
		return ""
	}
	return d
}

// Agent is one private agent. Its methods are not safe for concurrent use, except Client, Address and Log.
type Agent interface {
	// Info describes the agent.
	Info() Info

	// Address is the URL of the API and the web UI. It stays the same after a restart.
	Address() string

	// Client returns a client of the agent's API.
	Client() *api.Client

	// Start starts the agent's process again after Stop or Kill, with the same directories and ports. It returns when the
	// process runs; call WaitHealthy to wait for the plugins. The agent attaches to running tasks again.
	Start(ctx context.Context) error

	// Stop ends the agent's process and its plugins. Tasks keep running.
	Stop(ctx context.Context) error

	// Kill ends only the agent's process, with SIGKILL.
	Kill(ctx context.Context) error

	// Alive returns nil while the agent's process runs, and otherwise an error with the last lines of its log.
	Alive(ctx context.Context) error

	// Log returns the agent's log so far.
	Log() (string, error)

	// LogPath is the path of the log file on this machine.
	LogPath() string

	// Reconfigure replaces the plugins, the agent's configuration and the files of its host volume plugins. They take
	// effect at the next Start. All other options must be unchanged.
	Reconfigure(o Options) error

	// StateDir is the value of ${state_dir} in a plugin's Config. This path and the next three are valid where tasks run:
	// on this machine, or in the container.
	StateDir() string

	// DataDir is Nomad's data_dir.
	DataDir() string

	// PluginDir is Nomad's plugin_dir.
	PluginDir() string

	// HostVolumePluginDir is Nomad's host_volume_plugin_dir.
	HostVolumePluginDir() string

	// Close ends the agent and everything that it started, and removes its directory. If the agent has its own server,
	// Close first stops all jobs. A second Close is not an error.
	Close(ctx context.Context) error

	first(context.Context, Options) error // creates directories or a container, and calls Start
	settle() error                        // records Info.Settled
}

// ErrContainer is wrapped by Run's error if the container, or the agent in the container, cannot be started.
var ErrContainer = errors.New("no container can run the agent")

// Run starts an agent and waits until it and its plugins are healthy. A failed Run removes everything that it created;
// its error has the reason, if known.
func Run(ctx context.Context, o Options) (Agent, error) {
	for try := 1; ; try++ {
		a, err := run(ctx, o)
		if err == nil {
			return a, nil
		}
		// FreePorts does not reserve ports: another process can bind one before the agent or Docker does
		taken := strings.Contains(err.Error(), "address already in use") ||
			strings.Contains(err.Error(), "port is already allocated")
		if try == 3 || !taken {
			return nil, err
		}
	}
}

func run(ctx context.Context, o Options) (Agent, error) {
	ports, err := FreePorts(3)
	if err == nil {
		err = o.fill()
	}
	if err != nil {
		return nil, err
	}
	if _, err := readInfo(o.Dir); err == nil {
		return nil, fmt.Errorf("an agent already exists in %s: remove it first", o.Dir)
	}
	r := &record{info: Info{Runtime: o.Runtime, Dir: o.Dir, Binary: o.Binary, Server: o.Server,
		HTTP: cmp.Or(o.HTTPPort, ports[0]), RPC: ports[1], Serf: ports[2]}}
	a := r.agent()
	err = errors.Join(r.Reconfigure(o), r.connect())
	if err == nil {
		err = a.first(ctx, o)
		if err != nil && o.Runtime == Container {
			err = fmt.Errorf("%w: %w", ErrContainer, err)
		}
	}
	if err == nil {
		err = WaitHealthy(ctx, a, o.Progress)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(err, a.Close(ctx))
	}
	return a, nil
}

func (o *Options) fill() (err error) {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	o.Binary, err = filepath.Abs(o.Binary)
	if err != nil {
		return err
	}
	err = os.MkdirAll(o.Dir, 0o755)
	if err != nil {
		return fmt.Errorf("failed to create the agent's directory: %w", err)
	}
	o.Dir, err = resolve(o.Dir)
	return err
}

// resolve returns the absolute path without symbolic links. The clean-up compares it with the paths in /proc, which
// have none.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}
