// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is the remote driver on the Nomad node: its options, and an engine that runs tasks on other hosts over
// SSH. On such a host, the same program starts the tasks (package shim).
package driver

import (
	"context"
	"path/filepath"
	"regexp"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

// Config is the agent's plugin block.
type Config struct {
	Endpoints map[string]Endpoint `codec:"endpoint" label:"name" doc:"A host, by the name that jobs use: endpoint \"gpu1\" { ssh { … } }."`

	Programs map[string]string `codec:"programs" doc:"The plugin's binary for hosts of another architecture: { arm64 = \"/opt/nomad/nomad-driver-remote-arm64\" }."`

	API agentapi.Config `codec:"api" doc:"The agent's API, where the driver looks up why a task is stopped."`

	DeniedHostUIDs string   `codec:"denied_host_uids" doc:"User ids that no task may have on a host: ids and ranges, such as \"0,100-199\"."`
	DeniedHostGIDs string   `codec:"denied_host_gids" doc:"Group ids that no task may have on a host, supplementary groups included."`
	DeniedEnvvars  []string `codec:"denied_envvars" doc:"Environment variables that no task gets; * stands for any characters: \"AWS_*\"."`
}

// Endpoint is a host that runs tasks.
type Endpoint struct {
	SSH *ssh.Config `codec:"ssh" doc:"How to reach the host."`
	Dir string      `codec:"dir" doc:"Directory of tasks on the host, absolute. No other user may be able to write there or above. By default /var/lib/outrider-remote for root, otherwise .local/share/outrider-remote in the user's home."`
}

// TaskConfig is the config block of a task.
type TaskConfig struct {
	Endpoint string   `codec:"endpoint" required:"true" doc:"Endpoint that the task runs on."`
	Command  string   `codec:"command" required:"true" doc:"Program on the host: a path, or a name that is found in the task's local directory, the task directory, or PATH."`
	Args     []string `codec:"args" doc:"Arguments of the program."`

	OnDrain       string          `codec:"on_drain" default:"release" enum:"release,stop" doc:"What a drain of the node does: leave the task running for the next allocation, or stop it."`
	OnLost        string          `codec:"on_lost" default:"reattach" enum:"reattach,restart" doc:"What the next allocation does after the loss of a node: take over the running task, or start it again."`
	OrphanTimeout schema.Duration `codec:"orphan_timeout" default:"24h" doc:"How long the task may run without an allocation that follows it, until the host ends it. 0s means no limit."`

	core.TaskOptions
}

// endpointName matches names that can be part of an attribute's name.
var endpointName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// Validate checks the rules that the schema cannot express. The schema calls it.
func (c *Config) Validate() error {
	var p schema.Problems
	for name, e := range c.Endpoints {
		if !endpointName.MatchString(name) {
			p.Addf("endpoint %q: use letters, digits, - and _ in the name", name)
		}
		if e.Dir != "" && !filepath.IsAbs(e.Dir) {
			p.Addf("endpoint %q: dir %q is not absolute: begin it with /", name, e.Dir)
		}
		if e.SSH == nil {
			p.Addf("endpoint %q has no ssh block: add one with the host and the user", name)
			continue
		}
		if err := e.SSH.Check(); err != nil {
			p.Addf("endpoint %q: %v", name, err)
		}
	}
	for arch, path := range c.Programs {
		if !filepath.IsAbs(path) {
			p.Addf("programs: the path of %s, %q, is not absolute: begin it with /", arch, path)
		}
	}
	return p.OrNil()
}

// Plugin returns the remote driver.
func Plugin() core.Plugin[Config, TaskConfig] {
	return core.Plugin[Config, TaskConfig]{
		Name:    shim.Name,
		Summary: "runs tasks on hosts that are reached by SSH",
		New: func(c Config, logger hclog.Logger) (core.Instance[TaskConfig], error) {
			return &instance{engine: newEngine(c, logger)}, nil
		},
		Roles: []func() bool{shim.Role(onHost)},
	}
}

// instance is the configured driver.
type instance struct {
	process
	engine *engine
}

var _ core.EngineProvider = (*instance)(nil)

// Engine implements core.EngineProvider.
func (i *instance) Engine() core.Engine { return i.engine }

// onHost is the driver that the shim runs on a host: there, each task is a process.
var onHost = core.Plugin[core.PluginOptions, TaskConfig]{
	Name:    shim.Name,
	Summary: "runs tasks on this host for a Nomad node",
	New: func(core.PluginOptions, hclog.Logger) (core.Instance[TaskConfig], error) {
		return process{}, nil
	},
}

// process starts a job's command as a process.
type process struct{}

// Command implements core.Instance.
func (process) Command(_ context.Context, r core.Request[TaskConfig]) (*task.Command, error) {
	return r.Run(r.Config.Command, r.Config.Args...), nil
}
