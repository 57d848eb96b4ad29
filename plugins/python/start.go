package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/pep440"
)

type request = driver.Request[TaskConfig]

// command turns a task into a command: which program, which interpreter for it, which
// environment for both.
func (d *pythonDriver) command(ctx context.Context, r request) (*task.Command, error) {
	now := d.current()
	if err := r.Config.check(&now.config); err != nil {
		return nil, err
	}
	if u := r.User(); u != nil && now.builder != nil && u.UID == now.builder.Uid {
		return nil, fmt.Errorf("user %d builds this node's environments (build_user), and runs no tasks: name another user in the job", u.UID)
	}
	cmd := r.Run("python3")
	dirs := r.Task.TaskDir()
	files := taskFiles{user: r.User(), dirs: []string{cmd.Dir, dirs.LocalDir, dirs.Dir}}
	p, err := newProgram(&r.Config, files, cmd.Dir)
	if err != nil {
		return nil, err
	}
	required, err := readRequirements(&r.Config, files, p)
	if err != nil {
		return nil, err
	}
	found, err := now.finder.Find(ctx)
	if err != nil {
		return nil, err
	}
	python, err := choose(found, r.Config.Python, p.metadata.RequiresPython, required.RequiresPython)
	if err != nil {
		return nil, err
	}
	cmd.Path = python.Path
	cmd.Env = withoutAgents(cmd.Env)
	if !required.Empty() {
		env, err := d.environment(ctx, now, r, files, found, python, required)
		if err == nil {
			r.Finally(env.Release)
			err = env.Lend(r.StateDir())
		}
		if err != nil {
			return nil, startError(err, now.config.BuildTimeout.Duration())
		}
		use(cmd, env)
	}
	if r.Config.Code != "" {
		if err := writeInlineCode(dirs.Dir, r.Config.Code, r.User()); err != nil {
			return nil, err
		}
	}
	cmd.Args = slices.Concat(interpreterArgs(&r, python), p.args, r.Config.Args)
	return cmd, nil
}

// use makes a command run in an environment.
func use(cmd *task.Command, env *environment.Environment) {
	bin := filepath.Join(env.Dir, "bin")
	cmd.Path = filepath.Join(bin, "python3")
	path := "/usr/local/bin:/usr/bin:/bin"
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool {
		name, value, _ := strings.Cut(v, "=")
		if name == "PATH" && value != "" {
			path = value
		}
		return name == "PATH" || name == "VIRTUAL_ENV"
	})
	cmd.Env = append(cmd.Env, "PATH="+bin+":"+path, "VIRTUAL_ENV="+env.Dir)
	if cmd.User == nil && os.Geteuid() == 0 || cmd.User != nil && cmd.User.UID == 0 {
		// modes do not keep root from writing, a read-only mount does
		cmd.Mounts = append(cmd.Mounts, task.Mount{Source: env.Dir, Target: env.Dir, ReadOnly: true})
	}
}

// withoutAgents drops the agent's own settings for Python and its installers, which
// raw environments inherit; what the job sets stays.
func withoutAgents(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, value, _ := strings.Cut(v, "=")
		for _, prefix := range []string{"PYTHON", "PIP_", "UV_", "VIRTUAL_ENV", "CONDA_"} {
			if strings.HasPrefix(name, prefix) && os.Getenv(name) == value {
				return true
			}
		}
		return false
	})
}

// interpreterArgs are the options before the program.
func interpreterArgs(r *request, python interpreter.Interpreter) []string {
	var args []string
	if r.Config.Unbuffered {
		args = append(args, "-u")
	}
	if r.Config.Isolated {
		args = append(args, "-I")
	}
	args = append(args, "-X", "faulthandler") // as an option: isolated ignores the variable
	if n := cores(r); n > 0 && atLeast(python, "3.13") {
		args = append(args, "-X", "cpu_count="+strconv.Itoa(n)) // os.cpu_count() is the host's otherwise
	}
	return append(args, r.Config.InterpreterArgs...)
}

// cores is how many the job reserved for the task (resources { cores = 2 }), 0 for none.
func cores(r *request) int {
	if r.Task.Resources == nil || r.Task.Resources.LinuxResources == nil {
		return 0
	}
	n := 0
	for part := range strings.SplitSeq(r.Task.Resources.LinuxResources.CpusetCpus, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.Atoi(first)
		if err != nil {
			continue
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(last); err != nil {
				continue
			}
		}
		n += max(0, b-a+1)
	}
	return n
}

func atLeast(python interpreter.Interpreter, version string) bool {
	s, err := pep440.Parse(">=" + version)
	return err == nil && s.Allows(python.Version)
}

// choose finds the interpreter that the job, the program and the lock agree on.
func choose(found []interpreter.Interpreter, job, script, lock string) (interpreter.Interpreter, error) {
	path := ""
	if strings.HasPrefix(job, "/") {
		path, job = job, ""
	}
	wanted := pep440.Specifier{}
	for _, w := range []struct{ who, spec string }{{"python", job}, {"requires-python of the script", script}, {"requires-python of the lock", lock}} {
		s, err := pep440.Parse(w.spec)
		if err != nil {
			return interpreter.Interpreter{}, fmt.Errorf("%s: %w", w.who, err)
		}
		wanted = wanted.And(s)
	}
	return interpreter.Choose(found, path, wanted)
}

// startError is what Nomad shows, and tells it which failures may be none later or on
// another node. Nomad takes that from the error itself and not from what it wraps
// (plugins/drivers/server.go).
func startError(err error, limit time.Duration) error {
	temporary := false
	var may interface{ Temporary() bool }
	if errors.As(err, &may) {
		temporary = may.Temporary()
	}
	var failed *install.Error
	switch {
	case errors.As(err, &failed):
		err = fmt.Errorf("failed to build the environment: %w%s", err, lastLines(failed))
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("failed to build the environment within %s (build_timeout)", limit)
	}
	if temporary {
		return structs.NewRecoverableError(err, true)
	}
	return err
}

// lastLines are an installer's, in one, as Nomad's events have no more.
func lastLines(e *install.Error) string {
	const most = 600
	text := strings.Join(e.Lines[max(0, len(e.Lines)-5):], " | ")
	if text == "" {
		return ""
	}
	if len(text) > most {
		text = "…" + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	return fmt.Sprintf(" (the last lines of %s: %s)", e.Tool, text)
}
