// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/account"
	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Config is the agent's plugin block.
type Config struct {
	Interpreters []string `codec:"interpreters" doc:"Directories with interpreters; * stands for any characters but a slash. By default those of the distribution, /usr/local, /opt, uv and pyenv."`

	PythonInstall bool `codec:"python_install" default:"false" doc:"Whether uv installs a release of CPython into the cache when no interpreter of the node fits."`

	UV string `codec:"uv" doc:"The path of uv. By default that of the agent's PATH."`

	IndexURL       string   `codec:"index_url" default:"https://pypi.org/simple" doc:"The package index for jobs that name none."`
	ExtraIndexURLs []string `codec:"extra_index_urls" doc:"More indexes for jobs that name none."`
	FindLinks      []string `codec:"find_links" doc:"Directories of the node (absolute) and pages that have wheels, for every job."`
	Offline        bool     `codec:"offline" default:"false" doc:"Whether packages come from find_links alone."`
	JobIndexes     bool     `codec:"job_indexes" default:"true" doc:"Whether jobs may name indexes, pages and URLs of packages themselves."`

	CacheDir     string          `codec:"cache_dir" doc:"The directory of the environments, which tasks of any user must reach. By default /var/cache/outrider/python for root, otherwise outrider/python in the user's own cache."`
	CacheMaxSize schema.Size     `codec:"cache_max_size" default:"10GiB" doc:"The size above which unused environments are removed."`
	CacheMaxAge  schema.Duration `codec:"cache_max_age" default:"720h" doc:"The time without use after which an environment is removed."`
	RefreshAfter schema.Duration `codec:"refresh_after" default:"24h" doc:"How long an environment without a lock serves new tasks; 0s means no limit."`
	BuildUser    string          `codec:"build_user" default:"79999" doc:"The user that builds environments where the agent is root."`
	BuildTimeout schema.Duration `codec:"build_timeout" default:"10m" min:"1s" doc:"How long a task may take to get an environment."`

	DefaultUser     string `codec:"default_user" default:"nobody" doc:"The user of tasks whose job names none, where the agent is root."`
	ExceptionEvents bool   `codec:"exception_events" default:"true" doc:"Whether the exception that ended a task appears in its events."`

	driver.PluginOptions
}

// TaskConfig is the config block of a task.
type TaskConfig struct {
	Script string   `codec:"script" doc:"The program: a file, a zip application, or a directory with a __main__.py, below the working directory, local or the task directory."`
	Module string   `codec:"module" doc:"A module, as with python -m."`
	Code   string   `codec:"code" doc:"The program itself, which is written to local/inline_code.py."`
	Args   []string `codec:"args" doc:"The arguments of the program, sys.argv[1:]."`

	Python       string         `codec:"python" doc:"The interpreter: versions as uv takes them, such as \">=3.11,<3.14\", \"3.12\" or \"pypy3.9\"."`
	Requirements schema.Strings `codec:"requirements" doc:"The packages to install: a requirements file of the task (its name has a slash, .txt or .in), its pyproject.toml, or a list."`
	Lock         string         `codec:"lock" doc:"Instead of requirements: a requirements file with hashes, or a uv.lock."`
	Extras       []string       `codec:"extras" doc:"The extras of the pyproject.toml or uv.lock to install, too."`
	DepGroups    []string       `codec:"dependency_groups" doc:"The dependency groups of that file to install, too."`

	Refresh bool `codec:"refresh" default:"false" doc:"Whether the packages are installed again at each start of the task, at most once a minute."`

	IndexURL       string   `codec:"index_url" doc:"The package index, instead of the node's."`
	ExtraIndexURLs []string `codec:"extra_index_urls" doc:"More indexes, instead of the node's."`
	FindLinks      []string `codec:"find_links" doc:"Directories of the task and pages with wheels, in addition to the node's."`
	Offline        bool     `codec:"offline" default:"false" doc:"Whether packages come from find_links alone."`

	Unbuffered      bool     `codec:"unbuffered" default:"true" doc:"Whether output appears as it is written (python -u)."`
	InterpreterArgs []string `codec:"interpreter_args" doc:"More options for the interpreter."`

	driver.TaskOptions
}

// validate checks the rules that the schema cannot express.
func validate(c *Config) error {
	for _, g := range c.Interpreters {
		if !filepath.IsAbs(g) {
			return fmt.Errorf("%q in interpreters is not absolute: begin it with /", g)
		}
	}
	for _, u := range append([]string{c.IndexURL}, c.ExtraIndexURLs...) {
		if _, err := requirement.CheckURL(u); err != nil {
			return fmt.Errorf("invalid index_url or extra_index_urls: %w", err)
		}
	}
	for _, f := range c.FindLinks {
		if !filepath.IsAbs(f) && !requirement.IsURL(f) {
			return fmt.Errorf("%q in find_links is neither an absolute path nor a URL: begin it with / or https://", f)
		}
	}
	return nil
}

// check validates a task's config block without reading the task's files.
func (t *TaskConfig) check() error {
	programs := slices.DeleteFunc([]string{t.Script, t.Module, t.Code}, func(p string) bool { return p == "" })
	switch {
	case len(programs) == 0:
		return fmt.Errorf("nothing to run: set script, module or code")
	case len(programs) > 1:
		return fmt.Errorf("script, module and code are mutually exclusive: set one of them")
	case len(t.Requirements) > 0 && t.Lock != "":
		return fmt.Errorf("requirements and lock are mutually exclusive: set one of them (a lock lists every package)")
	case len(t.Extras)+len(t.DepGroups) > 0 && t.Lock == "" && !t.isProject():
		return fmt.Errorf("extras and dependency_groups need a project: set requirements (pyproject.toml) or lock (uv.lock)")
	}
	return nil
}

// builder returns the user and group that build_user names, by name or by number. A number needs no account.
func builder(c *Config) (*syscall.Credential, error) {
	u, err := account.Resolve(c.BuildUser, nil)
	switch {
	case err != nil:
		return nil, fmt.Errorf("build_user: %w", err)
	case u == nil || u.UID == 0 || u.GID == 0:
		return nil, fmt.Errorf("build_user must not be root or in group root: set another user")
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID}, nil
}

// refuseBuilder refuses a task with the builder's uid or gid: such a task could change environments while they are
// built. u is nil if the task runs as the agent's user.
func (d *instance) refuseBuilder(u *task.User) error {
	if d.builder == nil || u == nil {
		return nil
	}
	if u.UID == d.builder.Uid || u.GID == d.builder.Gid || slices.Contains(u.Groups, d.builder.Gid) {
		return fmt.Errorf("user %d is build_user or in its group %d: run the task as another user", u.UID, d.builder.Gid)
	}
	return nil
}
