// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import "github.com/outrider-dev/outrider/internal/core/schema"

// Config is the agent's block.
type Config struct {
	Endpoints map[string]Endpoint `codec:"endpoint" label:"name" doc:"A host or engine that tasks run on, by the name that jobs use: endpoint \"gpu1\" { ssh { … } }."`

	API     API             `codec:"api" doc:"How the plugin asks Nomad why a task is to be stopped, and whether a task is still wanted."`
	Cluster string          `codec:"cluster" doc:"A name for this Nomad cluster, the same on all of its nodes. Set it if several clusters with regions of the same name use one endpoint, before tasks run: under another name a task that runs is not taken over, and its next start fails."`
	Lease   schema.Duration `codec:"lease" default:"30s" min:"3s" max:"10m" doc:"How long a task belongs to its node without a sign of life of that node. After it, another node may take the task over without evidence from Nomad."`

	ReapEvery schema.Duration `codec:"reap_every" default:"60s" min:"1s" doc:"The time between two searches for tasks that are no longer wanted."`
	ReapAfter schema.Duration `codec:"reap_after" default:"5m" min:"1s" doc:"How long such a task must have had no owner before it is stopped."`
}

// Endpoint is a block endpoint: exactly one of SSH and Docker is set.
type Endpoint struct {
	SSH      *SSH    `codec:"ssh" doc:"A Linux host with an OpenSSH server."`
	Docker   *Docker `codec:"docker" doc:"A Docker or Podman engine."`
	Address  string  `codec:"address" doc:"The address at which others reach the ports of tasks there, for services with address_mode = \"driver\". By default the one that the plugin connects to; with a unix socket none."`
	MaxTasks int     `codec:"max_tasks" default:"0" min:"0" doc:"How many tasks may be there at once, those of all nodes and clusters counted; 0 is no limit."`
}

// SSH is a host that runs tasks.
type SSH struct {
	Host string `codec:"host" required:"true" doc:"Name or address of the host."`
	Port int    `codec:"port" default:"22" min:"1" max:"65535" doc:"Port of its SSH server."`
	User string `codec:"user" doc:"The user there; it need not be root. By default the user of the agent."`
	Keys
	StateDir string `codec:"state_dir" doc:"The directory of tasks on the host, absolute. By default outrider-remote below the user's XDG_STATE_HOME or ~/.local/state. No other user may be able to write there or above, except as in /tmp."`
	Jump     *Jump  `codec:"jump" doc:"A host on the way, as with ssh -J."`
}

// Keys are the two sides' proof of who they are.
type Keys struct {
	KeyFile        string   `codec:"key_file" doc:"File with a private key without a passphrase, absolute. Only its owner may be able to read it."`
	AgentSocket    string   `codec:"agent_socket" doc:"Socket of an ssh-agent that has the key, absolute."`
	HostKeys       []string `codec:"host_keys" doc:"The host's public keys, as ssh-keyscan prints them, without the name: \"ssh-ed25519 AAAA…\". Any other key is refused."`
	KnownHostsFile string   `codec:"known_hosts_file" doc:"File with the host's public keys in the format of known_hosts (sshd(8)), absolute; instead of host_keys."`
}

// Jump is a host on the way to another.
type Jump struct {
	Host           string   `codec:"host" required:"true" doc:"Name or address."`
	Port           int      `codec:"port" default:"22" min:"1" max:"65535" doc:"Port of its SSH server."`
	User           string   `codec:"user" doc:"The user there, by default that of the host behind it."`
	KeyFile        string   `codec:"key_file" doc:"As that of the host behind it, which is the default, together with agent_socket."`
	HostKeys       []string `codec:"host_keys" doc:"The public keys of this host."`
	KnownHostsFile string   `codec:"known_hosts_file" doc:"As that of the host behind it, which is the default."`
}

// Docker is an engine that runs tasks.
type Docker struct {
	Host     string     `codec:"host" default:"unix:///var/run/docker.sock" doc:"Where the engine listens: unix://PATH, tcp://HOST:PORT (needs ca_file, cert_file and key_file), or ssh://USER@HOST:PORT/PATH (needs a block ssh), PATH being the engine's socket on that host, by default /var/run/docker.sock."`
	CAFile   string     `codec:"ca_file" doc:"With tcp://: file with the certificate authority of the engine's certificate, absolute."`
	CertFile string     `codec:"cert_file" doc:"With tcp://: file with the certificate of this client, absolute."`
	KeyFile  string     `codec:"key_file" doc:"With tcp://: file with its key, absolute. Only its owner may be able to read it."`
	SSH      *DockerSSH `codec:"ssh" doc:"With ssh://: the keys."`
}

// DockerSSH is what an ssh:// address does not have.
type DockerSSH struct {
	Keys
	Jump *Jump `codec:"jump" doc:"A host on the way, as with ssh -J."`
}

// API is how the plugin asks Nomad.
type API struct {
	Address   string `codec:"address" default:"http://127.0.0.1:4646" doc:"Nomad's API: that of this node's agent, or of a server; several, separated by commas, are asked in turn. Empty: Nomad is not asked."`
	TokenFile string `codec:"token_file" doc:"File with a token that may read the jobs of every namespace, and nodes, absolute. It is read again when it changes. Only its owner and group may be able to read it, and only its owner to change it. Without one, the plugin asks with the task's workload identity, if the task has one."`
	CAFile    string `codec:"ca_file" doc:"File with the certificate authority of the API, absolute."`
	CertFile  string `codec:"cert_file" doc:"File with a client certificate for the API, absolute."`
	KeyFile   string `codec:"key_file" doc:"File with its key, absolute."`
}

// TaskConfig is the config block of a task.
type TaskConfig struct {
	Endpoint string `codec:"endpoint" required:"true" doc:"The endpoint that the task runs on, by its name in the agent's configuration."`

	Command  string  `codec:"command" doc:"ssh: the program. Without a slash it is looked for in the task's local directory, then on the PATH of the host."`
	KillMode *string `codec:"kill_mode" enum:"process,group,all" doc:"ssh: which processes get the kill signal when the task is stopped: the main process (the default), its process group, or all processes of the task. At the kill timeout all that are left are killed, in any mode."`

	Image      string   `codec:"image" doc:"docker: the image."`
	Pull       *string  `codec:"pull" enum:"missing,always,never" doc:"docker: when the image is pulled, by default when it is missing."`
	Entrypoint []string `codec:"entrypoint" doc:"docker: what to run in place of the image's entrypoint."`
	Mounts     []Mount  `codec:"mount" doc:"docker: a directory of the engine's host, or a volume of the engine."`
	Network    string   `codec:"network_mode" doc:"docker: bridge, host, none, or a network of the engine; by default the engine's default."`

	Args    []string          `codec:"args" doc:"The arguments of the program, or of the image's entrypoint."`
	WorkDir string            `codec:"work_dir" doc:"The directory that the program starts in, absolute. On ssh it may be relative to the task's directory, which is the default; on docker the default is the image's."`
	Ports   map[string]string `codec:"ports" doc:"The ports that the program listens on there, by label. The variables NOMAD_PORT_<label>, NOMAD_ADDR_<label> and the like have them and the endpoint's address."`
	Publish map[string]string `codec:"publish" doc:"docker: the port of the engine's host for a label of ports; by default, and with 0, the engine picks one."`

	Resources Resources `codec:"resources" doc:"Limits on the endpoint. The job's own resources block is what the task needs of the Nomad node, which is next to nothing."`

	OnDrain       string          `codec:"on_drain" default:"release" enum:"release,stop" doc:"What a drain of the Nomad node does to the task of a service: the task runs on until another node takes it over, or it is stopped and started again."`
	OnLost        string          `codec:"on_lost" default:"reattach" enum:"reattach,restart" doc:"What the replacement does after the Nomad node was lost: it takes the running task over, or it stops the task and starts it again."`
	OnUnknown     string          `codec:"on_unknown" default:"release" enum:"release,stop" doc:"What a stop does when Nomad does not answer why it is to be: the task runs on without an owner, or it is stopped."`
	OrphanTimeout schema.Duration `codec:"orphan_timeout" default:"0s" doc:"How long the task may run without an owner before it is stopped even though it may still be wanted; 0s is indefinitely."`
	Kill          Kill            `codec:"kill" doc:"How the task is stopped where no node has been asked to stop it: when it is no longer wanted, after orphan_timeout, and before a start with another configuration."`

	Logs Logs `codec:"logs" doc:"How much output is kept on the endpoint, and in the allocation. (The job's own logs block does not reach a driver.)"`
}

// Kill is how a task is stopped.
type Kill struct {
	Signal string          `codec:"signal" default:"SIGTERM" doc:"The first signal, by its name in signal(7)."`
	Grace  schema.Duration `codec:"grace" default:"10s" doc:"The time between that signal and SIGKILL."`
}

// Mount is a mount of a container.
type Mount struct {
	Type     string `codec:"type" default:"bind" enum:"bind,volume" doc:"A directory of the engine's host, or a volume of the engine."`
	Source   string `codec:"source" required:"true" doc:"The directory, absolute, or the volume's name."`
	Target   string `codec:"target" required:"true" doc:"The path in the container, absolute."`
	ReadOnly bool   `codec:"readonly" default:"false" doc:"Whether the task may not write there."`
}

// Resources are limits on an endpoint.
type Resources struct {
	CPU    string      `codec:"cpu" doc:"How many cores, such as \"1.5\"; by default no limit."`
	Memory schema.Size `codec:"memory" doc:"How much memory; by default no limit."`
	Pids   int64       `codec:"pids" default:"0" min:"0" doc:"How many processes and threads; 0 is no limit."`
}

// Logs are options of the output.
type Logs struct {
	MaxFiles    int `codec:"max_files" default:"10" min:"1" max:"1000" doc:"How many files are kept of stdout, and of stderr."`
	MaxFileSize int `codec:"max_file_size" default:"10" min:"1" max:"10000" doc:"At what size a file is rotated, at the end of a line, in MiB."`
}
