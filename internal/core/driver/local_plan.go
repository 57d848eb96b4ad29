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

// cgroups caches what the kernel offers: detection takes a hundred system calls, which
// is a tenth of a start's time.
var cgroups detected

type detected struct {
	mu      sync.Mutex
	support cgroup.Support // its slices and maps are not changed
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

// plan decides how a task is to run, and returns events for its author. It has no effect.
// Any mistake in the task's configuration is found here or by the launcher.
func (l *local) plan(ctx context.Context, s *Start, t *localTask) (notes []string, err error) {
	cfg := s.Task
	o := defaultTaskOptions()
	if c, ok := s.Config.(interface{ taskOptions() *TaskOptions }); ok {
		o = *c.taskOptions()
	}
	l.mu.Lock()
	deny := l.denied
	l.mu.Unlock()
	base, err := allowedCommand(s, o, deny)
	if err != nil {
		return nil, err
	}
	out, err := outputOf(cfg, o.Logs, task.Collector(l.config().LogCollection))
	if err != nil {
		return nil, err
	}
	st := &task.State{ID: cfg.ID, AllocID: cfg.AllocID, Task: cfg.Name, Output: out}
	if st.Limits, st.Group, err = limitsOf(cfg, o); err != nil {
		return nil, err
	}
	if st.Group.Mode == cgroup.None {
		notes = append(notes, "Limits are not enforced: "+whyNoCgroup(cgroups.now()))
	}
	notes = append(notes, ignored(cfg, st.Group, st.Limits, deny.filter(cfg.Env))...)
	cmd, err := s.Command(ctx, base, task.Store{Dir: t.storeDir}.TaskDir(cfg.ID)) // last: it may take its time
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
	t.state, t.killMode = st, task.KillMode(o.KillMode)
	t.unplug = unplug{Stop: o.OnUnplug == "stop", Delay: o.UnplugDelay.Duration()}
	st.Request, err = requestOf(s.Config, *st)
	return notes, err
}

// allowedCommand is baseCommand for a user that the operator does not deny.
func allowedCommand(s *Start, o TaskOptions, deny denied) (base task.Command, err error) {
	name := s.Task.User
	if name == "" && os.Geteuid() == 0 { // only root can choose
		name = s.DefaultUser
	}
	who, err := deny.resolve(name, o.Groups)
	if err != nil {
		return base, err
	}
	return baseCommand(s.Task, o, who, deny)
}

// LocalUser is account.Resolve for a task of the local engine: an error also if the operator denies the user.
func (d *Driver) LocalUser(field string) (*account.Account, error) {
	d.local.mu.Lock()
	deny := d.local.denied
	d.local.mu.Unlock()
	return deny.resolve(field, nil)
}

// limitsOf are the limits of a task, and the cgroup for it.
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
	group := cgroup.Plan(cgroups.now(), cpusetPath, cfg.AllocID, cfg.Name)
	err := l.Check() // also where nothing is limited
	if err == nil && o.PidsLimit > 0 && !group.Has("pids") {
		err = errors.New("pids_limit can't be enforced on this node: it has no pids cgroup")
	}
	return l, group, err
}

// requestOf is a hash that is equal for two calls which ask for the same run. It covers
// the task's configuration and what follows from it, such as user and limits. It does
// not cover the id and the environment: Nomad renews tokens and templates.
func requestOf(config any, st task.State) (string, error) {
	st.ID, st.Command.Env = "", nil
	b, err := json.Marshal(struct { // sorts maps, and has no addresses in it
		Config any
		State  task.State
	}{config, st})
	if err != nil {
		return "", fmt.Errorf("failed to encode the task's configuration: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// whyNoCgroup is the reason for a plan without a cgroup.
func whyNoCgroup(s cgroup.Support) string {
	if s.Mode == cgroup.None && s.Missing != "" {
		return s.Missing
	}
	return "Nomad names no cgroup for the task"
}

// baseCommand is the part of the command that does not depend on the driver.
func baseCommand(cfg *drivers.TaskConfig, o TaskOptions, who *account.Account, deny denied) (task.Command, error) {
	dir := cfg.TaskDir()
	cmd := task.Command{
		Dir: dir.Dir, TaskDir: dir.Dir, Lookup: []string{dir.LocalDir, dir.Dir},
		Nice: o.Nice, OOMScoreAdj: o.OOMScoreAdj,
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
	// a program with root's rights, such as su, would read what the job's author wrote to /etc
	cmd.NoNewPrivileges = !trusted(&cmd) && cmd.User != nil && cmd.User.UID != 0
	cmd.Env = environment(deny.filter(cfg.Env), who)
	return cmd, nil
}

// self is the agent's own account, nil if it is unknown: tasks without a user run as
// it. A service manager may not have set its name and home.
var self = sync.OnceValue(func() *account.Account {
	a, err := account.Resolve(strconv.Itoa(os.Geteuid()), nil)
	if err != nil {
		return nil
	}
	return a
})

// ofUnit are the variables by which systemd and a service speak to each other (systemd.exec(5), sd_notify(3),
// sd_listen_fds(3)): a task that had those of the agent would speak in its name, or take what is meant for it.
var ofUnit = []string{
	"CREDENTIALS_DIRECTORY", "FDSTORE", "INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID",
	"LISTEN_PIDFDID", "LOG_NAMESPACE", "MAINPID", "MANAGERPID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE",
	"NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "WATCHDOG_USEC",
}

// environment is the task's as Nomad made it. Without file system isolation it contains
// the agent's own variables. Those of its unit are removed, and those about the user corrected,
// unless the job has set them. A value that is the agent's, too, is taken for inherited: Nomad
// does not tell the two apart.
func environment(env map[string]string, who *account.Account) []string {
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	for _, name := range ofUnit {
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

// outputOf decides who collects. A driver learns of logs { disabled = true } only by the
// path of the null device.
func outputOf(cfg *drivers.TaskConfig, o *LogOptions, c task.Collector) (task.Output, error) {
	out := task.Output{Collector: c, AllocDir: cfg.AllocDir}
	if o != nil && out.Collector == task.CollectorNomad {
		return out, errors.New("logs in config has no effect on this node, where Nomad collects the output " +
			"(log_collection = \"nomad\"): use the task's own logs block")
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

// limits are the job's resources block. memory alone is a hard limit; with
// memory_max, memory is what the kernel spares as long as it can (soft), and
// memory_max the hard one, -1 for none. Within a hard limit a task has the swap that its options say.
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
