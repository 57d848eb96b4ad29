// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// PluginOptions are the plugin options that every driver on this core has. Embed it in the plugin's
// configuration.
type PluginOptions struct {
	StateDir       string   `codec:"state_dir" doc:"Directory for the supervisor's socket and the state of running tasks, absolute. Only root and the agent's user may be able to replace it. By default /run/outrider for root, otherwise outrider in XDG_STATE_HOME or ~/.local/state."`
	LogCollection  string   `codec:"log_collection" default:"driver" enum:"driver,nomad" doc:"What writes output to the log files: the driver's supervisor, or a logmon process of Nomad for each task, which also honors the job's logs block."`
	DeniedHostUIDs string   `codec:"denied_host_uids" doc:"User ids that no task may run as, with ranges: \"0,100-199\"."`
	DeniedHostGIDs string   `codec:"denied_host_gids" doc:"Group ids that no task may have, not even as supplementary groups; with ranges."`
	DynamicUsers   bool     `codec:"dynamic_users" default:"false" doc:"Whether a task without a user gets its own from Nomad (users of the client block), which exists in no file. Needs an agent that is root."`
	DeniedEnvvars  []string `codec:"denied_envvars" doc:"Environment variables that no task gets; * stands for any characters: \"AWS_*\"."`
	Isolate        []string `codec:"isolate" doc:"What tasks do not share with the host: \"tmp\" (/tmp, /var/tmp), \"ipc\" (/dev/shm, message queues, semaphores), \"pid\" (process ids, /proc; one more small process for each task)."`
	NoNewPrivs     bool     `codec:"no_new_privs" default:"false" doc:"Whether no task can gain privileges by a set-user-ID program such as sudo (no_new_privs of prctl(2))."`
	Seccomp        string   `codec:"seccomp" default:"unconfined" doc:"Which system calls tasks may make: \"unconfined\", \"default\" (Docker's profile) or the absolute path of a profile in Docker's format, read at each start. With a profile, tasks have no_new_privs, and run no programs of other architectures."`
	AllowCaps      []string `codec:"allow_caps" doc:"Capabilities that jobs may add with cap_add, such as \"net_bind_service\", or \"all\" (capabilities(7)). With many of them, a task can become root."`
	Unveil         string   `codec:"unveil" default:"off" enum:"off,best-effort,strict" doc:"Whether Landlock confines tasks to their own directories, volumes and devices, and to the paths of the next options. \"best-effort\" also runs tasks if the kernel lacks Landlock or a part of it; \"strict\" needs Linux 6.2."`
	UnveilDefaults bool     `codec:"unveil_defaults" default:"true" doc:"Whether confined tasks may also use programs and libraries of the node, and files for names, users, time zones and certificates."`
	UnveilPaths    []string `codec:"unveil_paths" doc:"More paths for confined tasks, with their access: r read, w write, x execute, c create and remove, such as \"r:/srv/models\"."`
	UnveilByTask   bool     `codec:"unveil_by_task" default:"false" doc:"Whether jobs may name more paths (unveil of a task)."`
}

func (o *PluginOptions) pluginOptions() *PluginOptions { return o }

// TaskOptions are the task options that every driver on this core has. Embed it in the task's
// configuration.
type TaskOptions struct {
	DeniedEnvvars []string          `codec:"denied_envvars" doc:"Environment variables that the task does not get, in addition to the plugin's; * stands for any characters."`
	WorkDir       string            `codec:"work_dir" doc:"Working directory: absolute, or relative to the task directory, which is the default."`
	Groups        []string          `codec:"groups" doc:"Supplementary groups in addition to the user's, by name or id."`
	KillMode      string            `codec:"kill_mode" default:"process" enum:"process,group,all" doc:"Processes that get the kill signal: the main process, its process group, or all of the task. At the kill timeout, all remaining processes are killed."`
	PreStop       []string          `codec:"pre_stop" doc:"Command that runs in the task when it is stopped, before the kill signal, such as [\"/bin/sh\", \"-c\", \"rm ready; sleep 5\"]. It may take up to the kill timeout."`
	Logs          *LogOptions       `codec:"logs" doc:"How much output is kept. With log_collection = \"driver\", max_files and max_file_size of the job's logs block have no effect: Nomad does not pass them to drivers."`
	CPUHardLimit  bool              `codec:"cpu_hard_limit" default:"false" doc:"Whether cpu is the most that the task gets, even if processors are idle. Needs cgroups."`
	IOWeight      int               `codec:"io_weight" default:"100" min:"1" max:"10000" doc:"Share of a busy disk, relative to other tasks. Needs cgroups, and the BFQ scheduler or, with cgroup v2, io.cost."`
	IOMax         []IOMax           `codec:"io_max" doc:"Limits for a disk. With cgroup v1, writes through the page cache are not limited. Needs cgroups."`
	MemorySwap    schema.Size       `codec:"memory_swap" doc:"Swap that the task may use beyond its memory, such as \"64MiB\"; by default none. With cgroup v1, any amount if it is set."`
	OnUnplug      string            `codec:"on_unplug" default:"ignore" enum:"ignore,stop" doc:"What happens when a reserved device is unplugged: only an event, or the task is also stopped after unplug_delay, and fails. The restart block then applies."`
	UnplugDelay   schema.Duration   `codec:"unplug_delay" default:"10s" doc:"How long a device is unplugged before the task is stopped."`
	OOMScoreAdj   int               `codec:"oom_score_adj" default:"0" min:"0" max:"1000" doc:"OOM score adjustment (proc(5)): when the host is out of memory, processes with a higher value are killed first."`
	Ulimit        map[string]string `codec:"ulimit" doc:"Resource limits as \"soft:hard\" or one value: nofile = \"1024:4096\", core = \"unlimited\"; names as in limits.conf(5)."`
	PidsLimit     int64             `codec:"pids_limit" default:"0" min:"0" doc:"Maximum number of processes and threads; 0 is no limit. Needs cgroups."`
	Isolate       []string          `codec:"isolate" doc:"What the task does not share with the host, in addition to the plugin's: \"tmp\", \"ipc\", \"pid\"."`
	NoNewPrivs    bool              `codec:"no_new_privs" default:"false" doc:"Whether the task can't gain privileges by a set-user-ID program such as sudo (no_new_privs of prctl(2))."`
	Stdin         string            `codec:"stdin" default:"null" enum:"null,open" doc:"Standard input: /dev/null, or a pipe that stays open, for programs that exit when their input ends. The task's user can write to it (/proc/PID/fd/0), in nomad alloc exec too."`
	CapAdd        []string          `codec:"cap_add" doc:"Capabilities for a task that does not run as root, among allow_caps: \"net_bind_service\" for ports below 1024."`
	CapDrop       []string          `codec:"cap_drop" doc:"Capabilities that the task can't have, not even as root; \"all\" drops those that are not in cap_add."`
	Unveil        []string          `codec:"unveil" doc:"More paths for the task, such as \"r:/srv/models\" or \"rwc:/tmp\". Needs unveil_by_task."`
	Umask         string            `codec:"umask" default:"0022" doc:"File mode creation mask, octal."`
	Nice          int               `codec:"nice" default:"0" min:"-20" max:"19" doc:"Scheduling priority (nice(1)); less is more important."`
}

// IOMax limits the use of one disk.
type IOMax struct {
	Device string      `codec:"device" required:"true" doc:"The disk, not a partition: a path below /dev, such as \"/dev/sda\" or a link in /dev/disk."`
	RBPS   schema.Size `codec:"rbps" doc:"Bytes read in a second, such as \"10MiB\"."`
	WBPS   schema.Size `codec:"wbps" doc:"Bytes written in a second."`
	RIOPS  int64       `codec:"riops" min:"0" doc:"Read operations in a second."`
	WIOPS  int64       `codec:"wiops" min:"0" doc:"Write operations in a second."`
}

// LogOptions are the options of a job's logs block that a driver needs, with the same names.
type LogOptions struct {
	MaxFiles    int `codec:"max_files" default:"10" min:"1" max:"1000" doc:"Number of files kept of stdout, and of stderr."`
	MaxFileSize int `codec:"max_file_size" default:"10" min:"1" max:"10000" doc:"Size in MiB at which a file is rotated, at the end of a line."`
}

// The defaults are read from the structs only once, because every start needs the defaults of a task.
var (
	defaultPluginOptions = sync.OnceValue(func() PluginOptions { return schema.Of[PluginOptions]().Default() })
	defaultTaskOptions   = sync.OnceValue(func() TaskOptions { return schema.Of[TaskOptions]().Default() })
	defaultLogOptions    = sync.OnceValue(func() LogOptions { return schema.Of[LogOptions]().Default() })
)

func (o *TaskOptions) taskOptions() *TaskOptions { return o }

// umask parses the option umask.
func (o *TaskOptions) umask() (*uint32, error) {
	v, err := strconv.ParseUint(o.Umask, 8, 32)
	if err != nil || v > 0o777 {
		return nil, fmt.Errorf("umask %q is not a file mode mask: use an octal number from 0000 to 0777, such as \"0027\"",
			o.Umask)
	}
	mask := uint32(v)
	return &mask, nil
}
