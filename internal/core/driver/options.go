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
	StateDir       string   `codec:"state_dir" doc:"Where the supervisor keeps its socket and the state of running tasks, absolute. Only root and the agent's user may be able to replace it. By default /run/outrider for root, otherwise outrider below the user's XDG_STATE_HOME or ~/.local/state."`
	LogCollection  string   `codec:"log_collection" default:"driver" enum:"driver,nomad" doc:"Who moves the output of tasks to the log files: the driver's supervisor, or a logmon process of Nomad's for each task (which also honours the job's logs block)."`
	DeniedHostUIDs string   `codec:"denied_host_uids" doc:"User ids that no task may run as: a list of ids and ranges, such as \"0,100-199\"."`
	DeniedHostGIDs string   `codec:"denied_host_gids" doc:"Group ids that no task may have, its supplementary groups included: a list of ids and ranges."`
	DynamicUsers   bool     `codec:"dynamic_users" default:"false" doc:"Whether a task without a user gets one of its own from Nomad (users of the client block), which exists in no file. Needs an agent that is root."`
	DeniedEnvvars  []string `codec:"denied_envvars" doc:"Environment variables that no task gets; * stands for any characters, such as \"AWS_*\"."`
	Isolate        []string `codec:"isolate" doc:"What every task has for itself instead of sharing it with the host: \"tmp\" (/tmp and /var/tmp, in the task's directory tmp), \"ipc\" (/dev/shm, message queues, semaphores) and \"pid\" (process ids and /proc, with one more small process for each task)."`
	NoNewPrivs     bool     `codec:"no_new_privs" default:"false" doc:"Whether no task can gain privileges by a set-user-ID program such as sudo (no_new_privs of prctl(2))."`
	Seccomp        string   `codec:"seccomp" default:"unconfined" doc:"Which system calls tasks may make: \"unconfined\", \"default\" (Docker's profile) or the absolute path of a profile in Docker's format, which is read at each start. With a profile, tasks have no_new_privs, and run no programs of other architectures."`
	AllowCaps      []string `codec:"allow_caps" doc:"Capabilities that jobs may add to a task with cap_add, such as \"net_bind_service\", or \"all\" (capabilities(7)). With many of them, a task can become root."`
	Unveil         string   `codec:"unveil" default:"off" enum:"off,best-effort,strict" doc:"Whether the kernel's Landlock confines tasks to their own directories, volumes and devices, and to the paths of the next options. \"best-effort\" also runs tasks where the kernel lacks Landlock or a part of it; \"strict\" needs Linux 6.2."`
	UnveilDefaults bool     `codec:"unveil_defaults" default:"true" doc:"Whether confined tasks may use what most programs need: programs and libraries of the node, and files for names, users, time zones and certificates."`
	UnveilPaths    []string `codec:"unveil_paths" doc:"More paths that confined tasks may use, each after what is allowed there: r read, w write, x execute, c create and remove, such as \"r:/srv/models\"."`
	UnveilByTask   bool     `codec:"unveil_by_task" default:"false" doc:"Whether jobs may name more paths in the option unveil of a task."`
}

func (o *PluginOptions) pluginOptions() *PluginOptions { return o }

// TaskOptions are the task options that every driver on this core has. Embed it in the task's
// configuration.
type TaskOptions struct {
	DeniedEnvvars []string          `codec:"denied_envvars" doc:"Environment variables that the task does not get, in addition to those that the operator denies; * stands for any characters."`
	WorkDir       string            `codec:"work_dir" doc:"The directory the program starts in: absolute, or relative to the task directory, which is the default."`
	Groups        []string          `codec:"groups" doc:"Supplementary groups in addition to those that the user belongs to, by name or id."`
	KillMode      string            `codec:"kill_mode" default:"process" enum:"process,group,all" doc:"Which processes get the kill signal when the task is stopped: the main process, its process group, or all processes of the task. At the kill timeout, all remaining processes are killed in any mode."`
	PreStop       []string          `codec:"pre_stop" doc:"A command and its arguments that run in the task when it is stopped, before the kill signal, such as [\"/bin/sh\", \"-c\", \"rm ready; sleep 5\"]. It may take up to the kill timeout."`
	Logs          *LogOptions       `codec:"logs" doc:"How much output is kept. With log_collection = \"driver\", max_files and max_file_size of the job's own logs block have no effect, because Nomad does not pass them to drivers."`
	CPUHardLimit  bool              `codec:"cpu_hard_limit" default:"false" doc:"Whether cpu of the resources block is the most that the task gets, even if processors are idle. Needs cgroups."`
	IOWeight      int               `codec:"io_weight" default:"100" min:"1" max:"10000" doc:"The task's share of a disk that is busy, compared with other tasks. Has an effect on disks with the BFQ scheduler or, with cgroup v2, io.cost. Needs cgroups."`
	IOMax         []IOMax           `codec:"io_max" doc:"The most that the task gets of a disk. With cgroup v1, writes through the page cache are not limited. Needs cgroups."`
	MemorySwap    schema.Size       `codec:"memory_swap" doc:"How much swap the task may use beyond its memory, such as \"64MiB\"; by default none. With cgroup v1, any amount if it is set."`
	OnUnplug      string            `codec:"on_unplug" default:"ignore" enum:"ignore,stop" doc:"What happens when a device that was reserved for the task is unplugged: only an event, or the task is stopped after unplug_delay and fails. The restart block then decides when Nomad places it where the device is."`
	UnplugDelay   schema.Duration   `codec:"unplug_delay" default:"10s" doc:"How long a device is unplugged before the task is stopped."`
	OOMScoreAdj   int               `codec:"oom_score_adj" default:"0" min:"0" max:"1000" doc:"OOM score adjustment: when the host is out of memory, the kernel kills processes with a higher value first (oom_score_adj of proc(5))."`
	Ulimit        map[string]string `codec:"ulimit" doc:"Resource limits as \"soft:hard\" or one value for both, such as nofile = \"1024:4096\" or core = \"unlimited\"; the names are those of limits.conf(5)."`
	PidsLimit     int64             `codec:"pids_limit" default:"0" min:"0" doc:"How many processes and threads the task may have; 0 is no limit. Needs cgroups."`
	Isolate       []string          `codec:"isolate" doc:"What the task has for itself, in addition to what the operator decides for every task: \"tmp\", \"ipc\", \"pid\"."`
	NoNewPrivs    bool              `codec:"no_new_privs" default:"false" doc:"Whether the task can't gain privileges by a set-user-ID program such as sudo (no_new_privs of prctl(2))."`
	Stdin         string            `codec:"stdin" default:"null" enum:"null,open" doc:"The program's standard input: /dev/null, or a pipe that stays open, for programs that exit when their input ends. The task's user can write to it (/proc/PID/fd/0), in nomad alloc exec too."`
	CapAdd        []string          `codec:"cap_add" doc:"Capabilities for a task that does not run as root, such as \"net_bind_service\" for ports below 1024. Those that the operator allows (allow_caps)."`
	CapDrop       []string          `codec:"cap_drop" doc:"Capabilities that the task can't have, not even as root; \"all\" drops those that are not in cap_add."`
	Unveil        []string          `codec:"unveil" doc:"Paths that the task may use in addition to those of the node, such as \"r:/srv/models\" or \"rwc:/tmp\". Only on nodes with unveil_by_task."`
	Umask         string            `codec:"umask" default:"0022" doc:"The file mode creation mask, octal."`
	Nice          int               `codec:"nice" default:"0" min:"-20" max:"19" doc:"The scheduling priority (nice(1)); less is more important."`
}

// IOMax limits the use of one disk.
type IOMax struct {
	Device string      `codec:"device" required:"true" doc:"The disk, not a partition: a path below /dev, such as \"/dev/sda\" or a link in /dev/disk."`
	RBPS   schema.Size `codec:"rbps" doc:"Bytes that the task reads in a second, such as \"10MiB\"."`
	WBPS   schema.Size `codec:"wbps" doc:"Bytes that it writes in a second."`
	RIOPS  int64       `codec:"riops" min:"0" doc:"Read operations in a second."`
	WIOPS  int64       `codec:"wiops" min:"0" doc:"Write operations in a second."`
}

// LogOptions are the options of a job's logs block that a driver needs, with the same names.
type LogOptions struct {
	MaxFiles    int `codec:"max_files" default:"10" min:"1" max:"1000" doc:"How many files of stdout, and of stderr, are kept."`
	MaxFileSize int `codec:"max_file_size" default:"10" min:"1" max:"10000" doc:"Size in MiB at which a file is rotated, at the end of a line."`
}

// The defaults, read from the structs once because every start needs those of a task.
var (
	defaultPluginOptions = sync.OnceValue(func() PluginOptions { return schema.Of[PluginOptions]().Default() })
	defaultTaskOptions   = sync.OnceValue(func() TaskOptions { return schema.Of[TaskOptions]().Default() })
	defaultLogOptions    = sync.OnceValue(func() LogOptions { return schema.Of[LogOptions]().Default() })
)

func (o *TaskOptions) taskOptions() *TaskOptions { return o }

// umask parses the option of that name.
func (o *TaskOptions) umask() (*uint32, error) {
	v, err := strconv.ParseUint(o.Umask, 8, 32)
	if err != nil || v > 0o777 {
		return nil, fmt.Errorf("umask %q is not a file mode mask: write it in octal, 0000 to 0777, such as \"0027\"",
			o.Umask)
	}
	mask := uint32(v)
	return &mask, nil
}
