// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package endpoint

// Spec is what an object runs. Nothing in it depends on the allocation or the node, so that
// it has the same hash on every node: paths below the allocation's directories are written
// with the Dir words, which an endpoint replaces by its own paths.
type Spec struct {
	// Task is its name: the command's files are below a directory of that name.
	Task string `json:"task"`

	// Env is the whole environment, without the agent's own variables.
	Env map[string]string `json:"env"`

	// VolatileEnv are names in Env that differ between allocations or nodes, and are no part of the hash:
	// NOMAD_ALLOC_ID, tokens.
	VolatileEnv []string `json:"volatile_env,omitempty"`

	// User is who runs it, by name or id; empty for the endpoint's default.
	User string `json:"user,omitempty"`

	Resources Resources      `json:"resources"`
	Ports     map[string]int `json:"ports,omitempty"` // by label: of the program; what it is reached by is Record.Ports
	MaxFiles  int            `json:"max_files"`       // of each stream kept on the endpoint
	MaxSize   int64          `json:"max_size"`        // of each file, bytes

	Process   *Process   `json:"process,omitempty"`   // for kind ssh
	Container *Container `json:"container,omitempty"` // for kinds docker and podman
}

// The words that stand for directories of the task on its endpoint.
const (
	DirTask    = "${outrider_task_dir}" // with local and secrets in it
	DirLocal   = "${outrider_local_dir}"
	DirSecrets = "${outrider_secrets_dir}" //nolint:gosec // a word
	DirAlloc   = "${outrider_alloc_dir}"   // with data in it
)

// Resources are limits on the endpoint; 0 is none.
type Resources struct {
	CPU    float64 `json:"cpu,omitempty"`    // cores
	Memory int64   `json:"memory,omitempty"` // bytes
	Pids   int64   `json:"pids,omitempty"`
}

// Process is a program on a host.
type Process struct {
	Command string   `json:"command"`
	Args    []string `json:"args,omitempty"`
	WorkDir string   `json:"work_dir,omitempty"` // absolute, or relative to the task's directory, its default
	Mode    string   `json:"mode,omitempty"`     // kill_mode
}

// Container is a container of an engine.
type Container struct {
	Image      string           `json:"image"`
	Pull       string           `json:"pull,omitempty"` // "missing" (the default), "always" or "never"
	Entrypoint []string         `json:"entrypoint,omitempty"`
	Command    []string         `json:"command,omitempty"` // arguments of the entrypoint
	WorkDir    string           `json:"work_dir,omitempty"`
	Mounts     []ContainerMount `json:"mounts,omitempty"`
	Network    string           `json:"network,omitempty"` // network mode
	Publish    map[string]int   `json:"publish,omitempty"` // by label of a port: on the host, 0 for any
}

// ContainerMount is a directory of the engine's host, or one of its volumes.
type ContainerMount struct {
	Type     string `json:"type"` // "bind" or "volume"
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Usage is a sample of what an object uses. What is not measured is -1.
type Usage struct {
	At         int64   `json:"at"`         // of the sample, unix nanoseconds of the endpoint's clock
	CPU        float64 `json:"cpu"`        // seconds of a core since its start
	UserCPU    float64 `json:"user_cpu"`   // of which in user mode
	SystemCPU  float64 `json:"system_cpu"` // of which in the kernel
	Memory     int64   `json:"memory"`     // bytes in use
	RSS        int64   `json:"rss"`        // of which anonymous
	Cache      int64   `json:"cache"`      // of which page cache
	Swap       int64   `json:"swap"`
	MaxMemory  int64   `json:"max_memory"` // the highest that Memory was
	Throttled  int64   `json:"throttled"`  // periods in which the limit of CPU held it up
	ThrottleNS int64   `json:"throttle_ns"`
	OOMKills   int64   `json:"oom_kills"`
	Processes  int     `json:"processes"`
}
