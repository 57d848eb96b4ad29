// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"path/filepath"
	"regexp"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"

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
	SSH *SSH   `codec:"ssh" doc:"How the host is reached: a Linux host with an OpenSSH server."`
	Dir string `codec:"dir" doc:"The directory of tasks on the host, absolute. No other user may be able to write there or above. By default /var/lib/outrider-remote for root, otherwise .local/share/outrider-remote in the user's home."`
}

// SSH is how a host is reached.
type SSH struct {
	Host string `codec:"host" required:"true" doc:"Name or address of the host."`
	Port int    `codec:"port" default:"22" min:"1" max:"65535" doc:"Port of its SSH server."`
	User string `codec:"user" doc:"The user there; it need not be root. By default the user of the agent."`

	KeyFile     string `codec:"key_file" doc:"File with a private key without a passphrase, absolute. Only its owner may be able to read it."`
	AgentSocket string `codec:"agent_socket" doc:"Socket of an ssh-agent that has the key, absolute; instead of key_file."`

	HostKeys       []string `codec:"host_keys" doc:"The host's public keys, as ssh-keyscan prints them, without the name: \"ssh-ed25519 AAAA…\". Any other key is refused."`
	KnownHostsFile string   `codec:"known_hosts_file" doc:"File with the host's public keys in the format of known_hosts (sshd(8)), absolute; instead of host_keys."`

	Jump *Jump `codec:"jump" doc:"A host on the way, as with ssh -J."`
}

// Jump is a host on the way to another.
type Jump struct {
	Host           string   `codec:"host" required:"true" doc:"Name or address."`
	Port           int      `codec:"port" default:"22" min:"1" max:"65535" doc:"Port of its SSH server."`
	User           string   `codec:"user" doc:"The user there, by default that of the host behind it."`
	HostKeys       []string `codec:"host_keys" doc:"The public keys of this host."`
	KnownHostsFile string   `codec:"known_hosts_file" doc:"As that of the host behind it, which is the default."`
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
		if err := e.SSH.config().Check(); err != nil {
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

// config is the same for package ssh.
func (s *SSH) config() ssh.Config {
	c := ssh.Config{
		Host: s.Host, Port: s.Port, User: s.User, KeyFile: s.KeyFile, AgentSocket: s.AgentSocket,
		HostKeys: s.HostKeys, KnownHostsFile: s.KnownHostsFile,
	}
	if j := s.Jump; j != nil {
		c.Jump = &ssh.Config{
			Host: j.Host, Port: j.Port, User: j.User, HostKeys: j.HostKeys, KnownHostsFile: j.KnownHostsFile,
		}
	}
	return c
}
