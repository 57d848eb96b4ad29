// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/account"
	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// cgroups caches the kernel's cgroup support: detecting it takes up to a hundred system calls, which is a tenth of a
// start's time.
var cgroups detected

type detected struct {
	mu      sync.Mutex
	support cgroup.Support // shared by all callers: do not change its slices and maps
	until   time.Time
}

func (d *detected) now() cgroup.Support {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); now.After(d.until) {
		d.support, d.until = cgroup.Detect(""), now.Add(10*time.Second)
	}
	return d.support
}

// plan decides how to run a task, stores its decisions in t, and returns events for the job's author. It has no other
// effects. Some mistakes in the task's configuration are reported only later, by the launcher.
func (l *local) plan(ctx context.Context, s *Start, t *localTask) (notes []string, err error) {
	cfg := s.Task
	o := defaultTaskOptions()
	if c, ok := s.Config.(interface{ taskOptions() *TaskOptions }); ok {
		o = *c.taskOptions()
	}
	set := l.settings.Load()
	deny, plugin := set.denied, set.options
	forTask := deny
	forTask.env = slices.Concat(deny.env, o.DeniedEnvvars)
	user, err := l.userOf(s, t.storeDir)
	if err != nil {
		return nil, err
	}
	who, err := forTask.resolve(user, o.Groups)
	if err != nil {
		return nil, err
	}
	base, err := baseCommand(cfg, o, who, forTask)
	if err != nil {
		return nil, err
	}
	base.Isolation, err = isolation(plugin, o, cfg)
	if err != nil {
		return nil, err
	}
	// programs with root's rights, such as su, would trust volumes and files whose content the job's author controls
	distrusted := !trusted(&base) || len(base.Isolation.Files) > 0
	runsAs, err := orAgents(base.User)
	if err != nil {
		return nil, err
	}
	isRoot := runsAs.UID == 0
	base.NoNewPrivileges = plugin.NoNewPrivs || o.NoNewPrivs || distrusted && !isRoot
	base.Unveil, err = unveil(plugin, o, cfg, &base)
	if err != nil {
		return nil, err
	}
	base.Capabilities, err = capabilities(plugin, o, base.User)
	if err != nil {
		return nil, err
	}
	base.Seccomp, err = seccompFilter(plugin.Seccomp, mayHave(base.Capabilities, isRoot))
	if err != nil {
		return nil, err
	}
	out, err := outputOf(cfg, o.Logs, task.Collector(plugin.LogCollection))
	if err != nil {
		return nil, err
	}
	st := &task.State{ID: cfg.ID, AllocID: cfg.AllocID, Task: cfg.Name, Output: out}
	if st.Limits, st.Group, err = limitsOf(cfg, o); err != nil {
		return nil, err
	}
	if base.Isolation.PID && st.Group.Mode == cgroup.None {
		return nil, errors.New("isolate = [\"pid\"] can't be used on this node: " + whyNoCgroup(cgroups.now()))
	}
	if st.Group.Mode == cgroup.None {
		notes = append(notes, "Limits are not enforced: "+whyNoCgroup(cgroups.now()))
	}
	notes = append(notes, ignored(cfg, st.Group, st.Limits, deny.filter(cfg.Env))...)
	cmd, err := s.Command(ctx, base, task.Store{Dir: t.storeDir}.TaskDir(cfg.ID)) // last, because it can be slow
	if err != nil {
		return nil, err
	}
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	if cmd.OwnMounts() && !canMount() {
		if moved := useHostPaths(cmd); len(moved) > 0 {
			notes = append(notes, "Devices are at their paths on the host: "+strings.Join(moved, ", "))
		}
	}
	st.Command = *cmd
	st.DynamicUser = isDynamic(user)
	t.state, t.killMode = st, task.KillMode(o.KillMode)
	t.preStop = o.PreStop
	t.unplug = unplug{Stop: o.OnUnplug == "stop", Delay: o.UnplugDelay.Duration()}
	st.Request, err = requestOf(s.Config, *st)
	return notes, err
}

// LocalUser works like account.Resolve for a user of the local engine's tasks, but refuses users that the operator
// denies.
func (d *Driver) LocalUser(field string) (*account.Account, error) {
	return d.local.settings.Load().denied.resolve(field, nil)
}

// limitsOf returns the limits of a task, and its cgroup.
func limitsOf(cfg *drivers.TaskConfig, o TaskOptions) (cgroup.Limits, cgroup.Group, error) {
	var l cgroup.Limits
	var cpusetPath string
	if r := cfg.Resources; r != nil {
		if r.LinuxResources != nil {
			cpusetPath = r.LinuxResources.CpusetCgroupPath
		}
		l = limits(r, o)
	}
	l.PidsMax = o.PidsLimit
	if o.CPUHardLimit {
		l.CPUQuota = quota(cfg.Resources)
	}
	err := limitIO(&l, o)
	if err == nil {
		err = l.Check() // even if this node can't enforce limits
	}
	group := cgroup.Plan(cgroups.now(), cpusetPath, cfg.AllocID, cfg.Name, l.Optional()...)
	switch {
	case err != nil:
	case o.PidsLimit > 0 && !group.Has("pids"):
		err = errors.New("pids_limit can't be enforced on this node: it has no pids cgroup")
	case o.CPUHardLimit && !group.Has("cpu"):
		err = errors.New("cpu_hard_limit can't be enforced on this node: it has no cpu cgroup")
	case len(l.Optional()) > 0 && !group.Has(cgroup.IO):
		err = errors.New("io_weight and io_max can't be enforced on this node: it has no io cgroup (blkio with cgroup v1)")
	}
	return l, group, err
}

// quota returns the processor time for cpu_hard_limit, in µs per cgroup.CPUPeriod. It is the task's share of the time
// of all processors of the node.
func quota(r *drivers.Resources) int64 {
	if r == nil || r.LinuxResources == nil {
		return 0
	}
	const least = 1000 // the kernel's minimum
	return max(least, int64(r.LinuxResources.PercentTicks*float64(runtime.NumCPU())*cgroup.CPUPeriod))
}

// requestOf returns a hash that is equal for two calls that request the same run. It covers the task's configuration
// and everything derived from it, such as user and limits. It does not cover the id and the environment, which may
// differ because Nomad renews tokens and templates.
func requestOf(config any, st task.State) (string, error) {
	st.ID, st.Command.Env = "", nil
	b, err := json.Marshal(struct { // JSON sorts the keys of maps, and contains no addresses
		Config any
		State  task.State
	}{config, st})
	if err != nil {
		return "", fmt.Errorf("failed to encode the task's configuration: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// whyNoCgroup returns the reason why a task gets no cgroup.
func whyNoCgroup(s cgroup.Support) string {
	if s.Mode == cgroup.None && s.Missing != "" {
		return s.Missing
	}
	return "Nomad has passed no cgroup for the task"
}

// baseCommand returns the part of the command that does not depend on the driver.
func baseCommand(cfg *drivers.TaskConfig, o TaskOptions, who *account.Account, deny denied) (task.Command, error) {
	dir := cfg.TaskDir()
	cmd := task.Command{
		Dir: dir.Dir, TaskDir: dir.Dir, Lookup: []string{dir.LocalDir, dir.Dir},
		Nice: o.Nice, OOMScoreAdj: o.OOMScoreAdj, OpenStdin: o.Stdin == "open",
	}
	switch {
	case o.WorkDir == "":
	case filepath.IsAbs(o.WorkDir):
		cmd.Dir = filepath.Clean(o.WorkDir)
	default:
		cmd.Dir = filepath.Join(dir.Dir, o.WorkDir)
	}
	var err error
	if cmd.Umask, err = o.umask(); err != nil {
		return cmd, err
	}
	if cmd.Rlimits, err = o.rlimits(); err != nil {
		return cmd, err
	}
	if who != nil {
		cmd.User = &who.User
	} else {
		who = self()
	}
	if n := cfg.NetworkIsolation; n != nil {
		cmd.NetworkNamespace = n.Path
	}
	if cmd.Devices, cmd.Mounts, err = devices(cfg); err != nil {
		return cmd, err
	}
	cmd.Env = environment(deny.filter(cfg.Env), who)
	return cmd, nil
}

// self returns the agent's own account, or nil if it is unknown. Tasks without a user run as this account. self looks
// up the user id, because the agent's USER and HOME may be unset under a service manager.
var self = sync.OnceValue(func() *account.Account {
	a, err := account.Resolve(strconv.Itoa(os.Geteuid()), nil)
	if err != nil {
		return nil
	}
	return a
})

// unitVariables are for the communication between systemd and a service (systemd.exec(5), sd_notify(3),
// sd_listen_fds(3)): a task that inherited these variables could act in the agent's name, or use the agent's resources.
var unitVariables = []string{
	"CREDENTIALS_DIRECTORY", "FDSTORE", "INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID",
	"LISTEN_PIDFDID", "LOG_NAMESPACE", "MAINPID", "MANAGERPID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE",
	"NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "WATCHDOG_USEC",
}

// environment returns the task's environment. Without file system isolation, Nomad includes the agent's own variables
// in env. environment removes the variables of the agent's systemd unit, and sets USER, LOGNAME and HOME, unless the
// job has set them. Nomad does not report which variables the job has set, so a value that equals the agent's counts as
// inherited.
func environment(env map[string]string, who *account.Account) []string {
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	for _, name := range unitVariables {
		own, set := os.LookupEnv(name)
		if set && env[name] == own {
			delete(env, name)
		}
	}
	if who != nil {
		for name, value := range map[string]string{"USER": who.Name, "LOGNAME": who.Name, "HOME": who.Home} {
			if old, set := env[name]; !set || old == os.Getenv(name) { // not set by the job
				env[name] = value
			}
			if env[name] == "" {
				delete(env, name)
			}
		}
	}
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// outputOf decides who collects the output. With logs { disabled = true }, Nomad passes the path of the null device.
func outputOf(cfg *drivers.TaskConfig, o *LogOptions, c task.Collector) (task.Output, error) {
	out := task.Output{Collector: c, AllocDir: cfg.AllocDir}
	if o != nil && out.Collector == task.CollectorNomad {
		return out, errors.New("the logs block in config has no effect on this node, because Nomad collects the output " +
			"(log_collection = \"nomad\"): use the task's logs block outside config")
	}
	if o == nil {
		defaults := defaultLogOptions()
		o = &defaults
	}
	switch {
	case cfg.StdoutPath == os.DevNull && cfg.StderrPath == os.DevNull:
		out.Collector, out.AllocDir = task.CollectorNone, ""
	case out.Collector == task.CollectorNomad:
		out.Stdout, out.Stderr = cfg.StdoutPath, cfg.StderrPath
	default:
		out.MaxFiles, out.MaxFileSize = o.MaxFiles, int64(o.MaxFileSize)<<20
	}
	return out, nil
}

// limits converts the job's resources block. Without memory_max, memory is a hard limit. With memory_max, memory is the
// amount that the kernel tries to leave to the task, and memory_max is the hard limit, or -1 for none. A task with a
// hard limit can use as much swap as its options allow.
func limits(r *drivers.Resources, o TaskOptions) cgroup.Limits {
	var l cgroup.Limits
	if n := r.NomadResources; n != nil {
		switch {
		case n.Memory.MemoryMaxMB < 0:
			l.MemoryLow, l.MemoryMax = n.Memory.MemoryMB<<20, -1
		case n.Memory.MemoryMaxMB > 0:
			l.MemoryLow, l.MemoryMax = n.Memory.MemoryMB<<20, n.Memory.MemoryMaxMB<<20
		default:
			l.MemoryMax = n.Memory.MemoryMB << 20
		}
	}
	if l.MemoryMax > 0 {
		swap := uint64(max(0, o.MemorySwap.Bytes()))
		l.SwapMax = &swap
		if swap == 0 {
			l.Swappiness = &swap
		}
	}
	if lr := r.LinuxResources; lr != nil {
		l.CPUShares = uint64(max(0, lr.CPUShares))
		l.Cpuset = lr.CpusetCpus
	}
	return l
}
