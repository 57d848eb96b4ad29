// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/account"
	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// plan is how an object's program is run: the content of planFile.
type plan struct {
	State    *task.State    `json:"state"`
	KillMode task.KillMode  `json:"kill_mode"`
	Ports    map[string]int `json:"ports,omitempty"`
	Limits   string         `json:"limits,omitempty"` // why they are not enforced, if any were asked for
}

// The limits of what is kept of the output.
const (
	defaultMaxFiles, mostFiles = 10, 1000
	defaultMaxSize, mostSize   = 10 << 20, 10000 << 20
)

// plan decides how the program runs. It has no effect.
func (s *Shim) plan(l *locked, spec *endpoint.Spec) (*plan, error) {
	if spec == nil || spec.Process == nil {
		return nil, errors.New("a host runs programs: command is missing")
	}
	if spec.Task != l.o.Key.Task {
		return nil, fmt.Errorf("task %q is not that of the object, %q", spec.Task, l.o.Key.Task)
	}
	p := &plan{KillMode: cmp.Or(task.KillMode(spec.Process.Mode), task.KillProcess), Ports: spec.Ports}
	switch p.KillMode {
	case task.KillProcess, task.KillGroup, task.KillAll:
	default:
		return nil, fmt.Errorf("kill_mode %q is none of process, group, all", p.KillMode)
	}
	who, err := accountOf(spec.User)
	if err != nil {
		return nil, err
	}
	dirs := s.dirs(l.o)
	words := dirs.words()
	cmd := task.Command{
		Path: words.Replace(spec.Process.Command), Env: environment(spec.Env, who, words),
		Dir: dirs.task, TaskDir: dirs.task, Lookup: []string{dirs.local, dirs.task},
	}
	for _, a := range spec.Process.Args {
		cmd.Args = append(cmd.Args, words.Replace(a))
	}
	if dir := words.Replace(spec.Process.WorkDir); filepath.IsAbs(dir) {
		cmd.Dir = filepath.Clean(dir)
	} else {
		cmd.Dir = filepath.Join(dirs.task, dir)
	}
	if who != nil {
		cmd.User = &who.User
	}
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	limits := cgroup.Limits{
		MemoryMax: spec.Resources.Memory, PidsMax: spec.Resources.Pids, CPUs: spec.Resources.CPU,
	}
	if err := limits.Check(); err != nil {
		return nil, err
	}
	if missing := s.unlimited(); missing != "" && spec.Resources != (endpoint.Resources{}) {
		p.Limits = "not enforced: " + missing
	}
	p.State = &task.State{
		ID: l.o.TaskID, AllocID: l.o.Name, Task: spec.Task, Command: cmd, Limits: limits, Group: s.group(l.o.Name),
		Output: task.Output{
			Collector: task.CollectorDriver, AllocDir: l.path,
			MaxFiles:    min(cmp.Or(max(spec.MaxFiles, 0), defaultMaxFiles), mostFiles),
			MaxFileSize: min(cmp.Or(max(spec.MaxSize, 0), defaultMaxSize), mostSize),
		},
	}
	return p, nil
}

// environment is the whole of the task's. What the job does not set of a login is the host's.
func environment(env map[string]string, who *account.Account, words *strings.Replacer) []string {
	all := map[string]string{"PATH": cmp.Or(os.Getenv("PATH"), "/usr/local/bin:/usr/bin:/bin")}
	if lang := os.Getenv("LANG"); lang != "" {
		all["LANG"] = lang
	}
	if who == nil {
		who = self()
	}
	if who != nil && who.Name != "" { // an id alone has none
		all["USER"], all["LOGNAME"] = who.Name, who.Name
	}
	if who != nil && who.Home != "" {
		all["HOME"] = who.Home
	}
	for name, value := range env {
		all[name] = words.Replace(value)
	}
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}
