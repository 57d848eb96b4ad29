package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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

	"github.com/outrider-dev/outrider/internal/core/builders"
	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// cgroups is what the kernel offers. It is the same for every task of a while,
// and to look takes a hundred system calls: a tenth of a start's time.
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

// newState says how a task is to run, and what its author should know of that. It
// has no effect; whatever is wrong with the task's configuration is found here or
// by the launcher.
func (d *Driver) newState(ctx context.Context, cfg *drivers.TaskConfig, t decodedTask, begun *startup) (st *task.State, notes []string, err error) {
	who, err := resolveUser(d.userOf(cfg), t.options.Groups)
	if err != nil {
		return nil, nil, err
	}
	if begun.base, err = d.baseCommand(cfg, t.options, who); err != nil {
		return nil, nil, err
	}
	if err := d.denied.check(begun.base.User); err != nil {
		return nil, nil, err
	}
	if err := refuseBuilders(builders.Dir, begun.base.User); err != nil {
		return nil, nil, err
	}
	out, err := d.output(cfg, t.options.Logs)
	if err != nil {
		return nil, nil, err
	}
	st = &task.State{ID: cfg.ID, AllocID: cfg.AllocID, Task: cfg.Name, Output: out}
	var cpusetPath string
	if r := cfg.Resources; r != nil {
		if r.LinuxResources != nil {
			cpusetPath = r.LinuxResources.CpusetCgroupPath
		}
		st.Limits = limits(r)
	}
	st.Limits.PidsMax = t.options.PidsLimit
	if err := st.Limits.Check(); err != nil {
		return nil, nil, err // also where nothing is limited
	}
	st.Group = cgroup.Plan(cgroups.now(), cpusetPath, cfg.AllocID, cfg.Name)
	if st.Group.Mode == cgroup.None {
		notes = append(notes, "Limits are not enforced: "+whyNoCgroup(cgroups.now()))
	}
	if t.options.PidsLimit > 0 && !st.Group.Has("pids") {
		return nil, nil, fmt.Errorf("pids_limit can't be enforced on this node: it has no pids cgroup")
	}
	notes = append(notes, ignored(cfg, st.Group, st.Limits, d.denied.filter(cfg.Env))...)
	cmd, err := t.command(ctx, begun) // last: it may take its time
	if err != nil {
		return nil, nil, err
	}
	if strings.ContainsRune(cmd.Path, 0) || slices.ContainsFunc(cmd.Args, func(s string) bool { return strings.ContainsRune(s, 0) }) {
		return nil, nil, fmt.Errorf("command has a NUL character, which no program can be given")
	}
	if err := checkSize(cmd); err != nil {
		return nil, nil, err
	}
	if cmd.OwnMounts() && !canMount() {
		if moved := useHostPaths(cmd); len(moved) > 0 {
			notes = append(notes, "Devices are at their paths on the host: "+strings.Join(moved, ", "))
		}
	}
	st.Command = *cmd
	if st.Request, err = requestOf(t.config, *st); err != nil {
		return nil, nil, err
	}
	return st, notes, nil
}

// requestOf is what two calls have in common that ask for the same run: the task's
// configuration and what became of it, user and limits among that. The environment is
// left out, of which Nomad makes tokens and templates anew, and the id.
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

// userOf is the job's, or the driver's own choice. Only root can choose.
func (d *Driver) userOf(cfg *drivers.TaskConfig) string {
	if cfg.User == "" && os.Geteuid() == 0 {
		if i, ok := optional[UserDefaulter](d); ok {
			return i.DefaultUser()
		}
	}
	return cfg.User
}

// whyNoCgroup says why a task was planned without one.
func whyNoCgroup(s cgroup.Support) string {
	if s.Mode == cgroup.None && s.Missing != "" {
		return s.Missing
	}
	return "Nomad names no cgroup for the task"
}

// baseCommand is what does not depend on the driver.
func (d *Driver) baseCommand(cfg *drivers.TaskConfig, o TaskOptions, who *account) (task.Command, error) {
	dir := cfg.TaskDir()
	cmd := task.Command{
		Dir: dir.Dir, Lookup: []string{dir.LocalDir, dir.Dir},
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
	cmd.Env = environment(d.denied.filter(cfg.Env), who)
	return cmd, nil
}

// self is whoever runs the agent, nil where that can't be found out: tasks without
// a user run as it. A service manager may not have told its name and home.
var self = sync.OnceValue(func() *account {
	a, err := resolveUser(strconv.Itoa(os.Geteuid()), nil)
	if err != nil {
		return nil
	}
	return a
})

// environment is the task's as Nomad made it, which without file system
// isolation has the agent's own in it; what that says of the agent's user is
// corrected to the task's.
func environment(env map[string]string, who *account) []string {
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	if who != nil {
		for name, value := range map[string]string{"USER": who.name, "LOGNAME": who.name, "HOME": who.home} {
			if old, set := env[name]; !set || old == os.Getenv(name) { // not what the job says
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

// output says who collects. Nomad tells a driver of logs { disabled = true } by
// the path of the null device, and of nothing else.
func (d *Driver) output(cfg *drivers.TaskConfig, o *LogOptions) (task.Output, error) {
	out := task.Output{Collector: task.Collector(d.options.LogCollection), AllocDir: cfg.AllocDir}
	if o != nil && out.Collector == task.CollectorNomad {
		return out, fmt.Errorf("logs in config has no effect on this node, where Nomad collects the output (log_collection = \"nomad\"): use the task's own logs block")
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
// memory_max the hard one, -1 for none.
func limits(r *drivers.Resources) cgroup.Limits {
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
	if lr := r.LinuxResources; lr != nil {
		l.CPUShares = uint64(max(0, lr.CPUShares))
		l.Cpuset = lr.CpusetCpus
	}
	return l
}
