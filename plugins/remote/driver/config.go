// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is the remote driver on the Nomad node: its options, and the engine whose tasks run on hosts
// that are reached by SSH. On such a host the same program runs them (package shim).
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
	Endpoints map[string]Endpoint `codec:"endpoint" label:"name" doc:"A host that tasks run on, by the name that jobs use: endpoint \"gpu1\" { ssh { … } }."`

	Programs map[string]string `codec:"programs" doc:"This plugin's program for hosts of another architecture than the node's, by architecture: { arm64 = \"/opt/nomad/nomad-driver-remote-arm64\" }. It is copied to the host."`

	API agentapi.Config `codec:"api" doc:"The API of the agent that runs the plugin. It is asked why a task is ended."`

	DeniedHostUIDs string   `codec:"denied_host_uids" doc:"User ids of a host that no task may run as: a list of ids and ranges, such as \"0,100-199\"."`
	DeniedHostGIDs string   `codec:"denied_host_gids" doc:"Group ids of a host that no task may have, its supplementary groups included: a list of ids and ranges."`
	DeniedEnvvars  []string `codec:"denied_envvars" doc:"Environment variables that no task gets; * stands for any characters, such as \"AWS_*\"."`
}

// Endpoint is a host that runs tasks.
type Endpoint struct {
	SSH *ssh.Config `codec:"ssh" doc:"How the host is reached: a Linux host with an OpenSSH server."`
	Dir string      `codec:"dir" doc:"The directory of tasks on the host, absolute. No other user may be able to write there or above. By default /var/lib/outrider-remote for root, otherwise .local/share/outrider-remote in the user's home."`
}

// TaskConfig is the config block of a task.
type TaskConfig struct {
	Endpoint string   `codec:"endpoint" required:"true" doc:"The endpoint that the task runs on, by its name in the agent's configuration."`
	Command  string   `codec:"command" required:"true" doc:"The program on the host: a path, or a name that is looked for in the task's local directory, the task directory, and PATH."`
	Args     []string `codec:"args" doc:"Its arguments."`

	OnDrain       string          `codec:"on_drain" default:"release" enum:"release,stop" doc:"What happens to the task when its Nomad node is drained: it is left running for the allocation that takes the place of this one, or stopped."`
	OnLost        string          `codec:"on_lost" default:"reattach" enum:"reattach,restart" doc:"What the allocation does that takes the place of one whose node is lost: it takes the running task over, or ends it and starts it again."`
	OrphanTimeout schema.Duration `codec:"orphan_timeout" default:"24h" doc:"How long the task may run on its host without an allocation that follows it; then the host ends it. 0s is for ever."`

	core.TaskOptions
}

// endpointName is what an attribute's name may have in it.
var endpointName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// Validate is called by the schema.
func (c *Config) Validate() error {
	var p schema.Problems
	for name, e := range c.Endpoints {
		if !endpointName.MatchString(name) {
			p.Addf("endpoint %q: a name has letters, digits, - and _ in it", name)
		}
		if e.Dir != "" && !filepath.IsAbs(e.Dir) {
			p.Addf("endpoint %q: dir %q is not absolute", name, e.Dir)
		}
		if e.SSH == nil {
			p.Addf("endpoint %q: it has no ssh block, which says how it is reached", name)
			continue
		}
		if err := e.SSH.Check(); err != nil {
			p.Addf("endpoint %q: %v", name, err)
		}
	}
	for arch, path := range c.Programs {
		if !filepath.IsAbs(path) {
			p.Addf("programs: the path of %s, %q, is not absolute", arch, path)
		}
	}
	return p.OrNil()
}

// Plugin is the driver.
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

// instance is the driver with its configuration.
type instance struct {
	process
	engine *engine
}

var _ core.EngineProvider = (*instance)(nil)

// Engine is part of core.EngineProvider.
func (i *instance) Engine() core.Engine { return i.engine }

// onHost is the driver on a host, where tasks are processes.
var onHost = core.Plugin[core.PluginOptions, TaskConfig]{
	Name:    shim.Name,
	Summary: "runs tasks on this host for a Nomad node",
	New: func(core.PluginOptions, hclog.Logger) (core.Instance[TaskConfig], error) {
		return process{}, nil
	},
}

// process runs what a job names.
type process struct{}

// Command is the program and the arguments of the job.
func (process) Command(_ context.Context, r core.Request[TaskConfig]) (*task.Command, error) {
	return r.Run(r.Config.Command, r.Config.Args...), nil
}
