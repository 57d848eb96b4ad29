// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/python/environment"
)

type request = driver.Request[TaskConfig]

// Command turns a task into a command: a program, the interpreter for it, and the environment for both.
func (d *instance) Command(ctx context.Context, r request) (*task.Command, error) {
	if err := r.Config.check(&d.config); err != nil {
		return nil, err
	}
	if err := d.refuseBuilder(r.User()); err != nil {
		return nil, err
	}
	cmd := r.Run("python3")
	dirs := r.Task.TaskDir()
	files := taskFiles{user: r.User(), dirs: []string{cmd.Dir, dirs.LocalDir, dirs.Dir}, secrets: dirs.SecretsDir}
	p, err := newProgram(&r.Config, files)
	if err != nil {
		return nil, err
	}
	required, err := readRequirements(&r.Config, files, p)
	if err != nil {
		return nil, err
	}
	python, err := d.choose(ctx, r.Config.Python, p.metadata.RequiresPython, required.RequiresPython)
	if err != nil {
		return nil, startError(ctx, err, d.config.BuildTimeout.Duration())
	}
	cmd.Path = python.Path
	cmd.Env = withHome(withoutAgents(cmd.Env), files, dirs.Dir)
	if !required.Empty() {
		env, err := d.environment(ctx, r, files, python, required)
		if err == nil {
			r.Finally(env.Release)
			err = env.Acquire(r.StateDir())
		}
		if err != nil {
			return nil, startError(ctx, err, d.config.BuildTimeout.Duration())
		}
		use(cmd, env)
	}
	if r.Config.Code != "" {
		if err := writeInlineCode(dirs.Dir, r.Config.Code, r.User()); err != nil {
			return nil, err
		}
	}
	cmd.Args = slices.Concat(interpreterArgs(&r.Config), p.args, r.Config.Args)
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

// withoutAgents removes the agent's own settings for Python and its installers, which a task can inherit, and keeps
// those of the job.
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

// withHome makes the task's own directory the home of a user who has none: many programs keep a cache there.
func withHome(env []string, files taskFiles, dir string) []string {
	const variable = "HOME="
	for _, v := range env {
		if home, ok := strings.CutPrefix(v, variable); ok && home != "" {
			if _, _, err := files.find(home); !errors.Is(err, fs.ErrNotExist) {
				return env
			}
		}
	}
	env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, variable) })
	return append(env, variable+dir)
}

// interpreterArgs are the options before the program.
func interpreterArgs(c *TaskConfig) []string {
	var args []string
	if c.Unbuffered {
		args = append(args, "-u")
	}
	args = append(args, "-X", "faulthandler") // as an option: with -I the variable has no effect
	return append(args, c.InterpreterArgs...)
}
