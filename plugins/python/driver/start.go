// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

type request = driver.Request[TaskConfig]

// Command implements driver.Instance. It finds the task's program, and prepares the interpreter and the environment.
func (d *instance) Command(ctx context.Context, r request) (*task.Command, error) {
	if err := r.Config.check(); err != nil {
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
	agents := os.Environ()
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool {
		return settings.MatchString(v) && slices.Contains(agents, v)
	})
	cmd.Env = withHome(cmd.Env, files, dirs.Dir)
	if err := d.prepare(ctx, r, cmd, files, p, required); err != nil {
		return nil, startError(ctx, err, d.config.BuildTimeout.Duration())
	}
	if r.Config.Code != "" {
		if err := writeInlineCode(dirs.Dir, r.Config.Code, r.User()); err != nil {
			return nil, err
		}
	}
	cmd.Args = slices.Concat(interpreterArgs(&r.Config), p.args, r.Config.Args)
	return cmd, nil
}

// prepare chooses the interpreter for a command and, if packages are required, the environment.
func (d *instance) prepare(
	ctx context.Context, r request, cmd *task.Command, files taskFiles, p program, required *requirement.Set,
) error {
	ctx, cancel := context.WithTimeout(ctx, d.config.BuildTimeout.Duration())
	defer cancel()
	uv, err := d.uv.Find(ctx)
	if err != nil {
		return err
	}
	python, err := d.choose(ctx, r.Config.Python, p.metadata.RequiresPython, required.RequiresPython)
	if err == nil && python.Path == "" {
		python, err = d.install(ctx, r, cmd, uv, python)
	}
	if err != nil {
		return err
	}
	cmd.Path = python.Path
	cmd.Reveal("rx", filepath.Dir(python.Path), filepath.Join(python.Path, "../../lib"))
	if required.Empty() {
		return nil
	}
	env, err := d.environment(ctx, r, cmd, files, uv, python, required)
	if err != nil {
		return err
	}
	use(cmd, env)
	return nil
}

// use makes a command run in an environment.
func use(cmd *task.Command, env *environment.Environment) {
	cmd.Reveal("rx", env.Dir)
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
}

// settings matches variables that configure the agent's interpreters, or belong to its user. Tasks do not inherit them.
var settings = regexp.MustCompile(`^(?:PYTHON|PIP_|UV_|CONDA_|VIRTUAL_ENV=|XDG_CACHE_HOME=)`)

// withHome sets HOME to dir if the home directory is missing. It then also sets XDG_CACHE_HOME, unless the job has set
// it, so programs can keep caches.
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
	env = append(env, variable+dir)
	if slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "XDG_CACHE_HOME=") }) {
		return env
	}
	return append(env, "XDG_CACHE_HOME="+filepath.Join(dir, ".cache"))
}

// interpreterArgs returns the interpreter's options, which come before the program.
func interpreterArgs(c *TaskConfig) []string {
	args := []string{"-X", "faulthandler"} // not the variable PYTHONFAULTHANDLER, which -I would ignore
	if c.Unbuffered {
		args = append(args, "-u")
	}
	return append(args, c.InterpreterArgs...)
}
