// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
)

// Config is the agent's plugin block.
type Config struct {
	Interpreters []string `codec:"interpreters" doc:"Directories with interpreters; * stands for any characters but a slash. By default those of the distribution, /usr/local, /opt, uv and pyenv."`

	UV string `codec:"uv" doc:"The path of uv. By default that of the agent's PATH."`

	IndexURL       string   `codec:"index_url" default:"https://pypi.org/simple" doc:"The package index for jobs that name none."`
	ExtraIndexURLs []string `codec:"extra_index_urls" doc:"More indexes for jobs that name none."`
	FindLinks      []string `codec:"find_links" doc:"Directories of the node (absolute) and pages that have wheels, for every job."`
	Offline        bool     `codec:"offline" default:"false" doc:"Whether packages come from find_links alone."`
	JobIndexes     bool     `codec:"job_indexes" default:"true" doc:"Whether jobs may name indexes, pages and URLs of packages themselves."`

	CacheDir     string          `codec:"cache_dir" doc:"The directory of the environments, which tasks of any user must reach. By default /var/cache/outrider/python for root, otherwise outrider/python below the user's XDG_CACHE_HOME or ~/.cache."`
	CacheMaxSize schema.Size     `codec:"cache_max_size" default:"10GiB" doc:"The size above which unused environments are removed."`
	CacheMaxAge  schema.Duration `codec:"cache_max_age" default:"720h" doc:"The time without use after which an environment is removed."`
	RefreshAfter schema.Duration `codec:"refresh_after" default:"24h" doc:"For how long an environment serves new tasks when its requirements are not locked; 0s is indefinitely."`
	BuildUser    string          `codec:"build_user" default:"79999" doc:"The user that builds environments where the agent is root."`
	BuildTimeout schema.Duration `codec:"build_timeout" default:"10m" min:"1s" doc:"How long a task may take to get an environment, with the wait for another that builds the same."`

	DefaultUser     string `codec:"default_user" default:"nobody" doc:"The user of tasks whose job names none, where the agent is root."`
	ExceptionEvents bool   `codec:"exception_events" default:"true" doc:"Whether the exception that ended a task appears in its events."`

	driver.PluginOptions
}

// TaskConfig is the config block of a task.
type TaskConfig struct {
	Script string   `codec:"script" doc:"The program: a file, a zip application (.pyz, .pex), or a directory with a __main__.py. A relative path is below the working directory, local or the task directory."`
	Module string   `codec:"module" doc:"A module, as with python -m."`
	Code   string   `codec:"code" doc:"The program itself, which is written to local/inline_code.py."`
	Args   []string `codec:"args" doc:"The arguments of the program, sys.argv[1:]."`

	Python       string         `codec:"python" doc:"The interpreter: versions as uv takes them, such as \">=3.11,<3.14\", \"3.12\" or \"pypy3.9\"."`
	Requirements schema.Strings `codec:"requirements" doc:"What the program needs: a requirements file of the task (a value with a slash, or that ends in .txt or .in), its pyproject.toml, or a list of requirements."`
	Lock         string         `codec:"lock" doc:"Instead: a requirements file with hashes, or a uv.lock."`
	Extras       []string       `codec:"extras" doc:"The extras of the pyproject.toml or uv.lock to install, too."`
	DepGroups    []string       `codec:"dependency_groups" doc:"The dependency groups of that file to install, too."`

	Refresh bool `codec:"refresh" default:"false" doc:"Whether the packages are installed anew at each start of the task, at most once a minute."`

	IndexURL       string   `codec:"index_url" doc:"The package index, instead of the node's."`
	ExtraIndexURLs []string `codec:"extra_index_urls" doc:"More indexes, instead of the node's."`
	FindLinks      []string `codec:"find_links" doc:"Directories of the task and pages with wheels, besides the node's."`
	Offline        bool     `codec:"offline" default:"false" doc:"Whether packages come from find_links alone."`

	Unbuffered      bool     `codec:"unbuffered" default:"true" doc:"Whether output appears as it is written (python -u)."`
	InterpreterArgs []string `codec:"interpreter_args" doc:"More options for the interpreter."`

	driver.TaskOptions
}
