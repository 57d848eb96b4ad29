// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/account"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// validate checks what the schema can't.
func validate(c *Config) error {
	for _, g := range c.Interpreters {
		if !filepath.IsAbs(g) {
			return fmt.Errorf("interpreters has %q, which is not absolute: write it from /, such as "+
				"\"/opt/python/*/bin\"", g)
		}
	}
	if err := checkIndexes(append([]string{c.IndexURL}, c.ExtraIndexURLs...)); err != nil {
		return err
	}
	for _, f := range c.FindLinks {
		if !filepath.IsAbs(f) && !requirement.IsURL(f) {
			return fmt.Errorf("find_links has %q, which is neither an absolute directory nor a URL", f)
		}
	}
	return nil
}

// check returns what is wrong with a task's config block, as far as the block alone shows it.
func (t *TaskConfig) check(c *Config) error {
	programs := slices.DeleteFunc([]string{t.Script, t.Module, t.Code}, func(p string) bool { return p == "" })
	switch {
	case len(programs) == 0:
		return fmt.Errorf("nothing to run: set script, module or code")
	case len(programs) > 1:
		return fmt.Errorf("script, module and code exclude each other: set one of them")
	case len(t.Requirements) > 0 && t.Lock != "":
		return fmt.Errorf("requirements and lock exclude each other: a lock has everything that is installed")
	case len(t.Extras)+len(t.DepGroups) > 0 && t.Lock == "" && !t.isProject():
		return fmt.Errorf("extras and dependency_groups are a project's: name its pyproject.toml in requirements, or its " +
			"uv.lock in lock (those of a package are written with it: \"NAME[EXTRA]\")")
	case strings.HasPrefix(t.Module, "-") || strings.ContainsAny(t.Module, " /\x00"):
		return fmt.Errorf("module %q is not the name of a module: write it as after python -m, such as \"http.server\"",
			t.Module)
	}
	for _, arg := range t.InterpreterArgs {
		if slices.Contains([]string{"-c", "-m", "-", "-h", "-V", "--help", "--version"}, arg) {
			return fmt.Errorf("interpreter_args has %q, which would run something else: use script, module or code", arg)
		}
	}
	urls := slices.Clone(t.ExtraIndexURLs)
	if t.IndexURL != "" {
		urls = append(urls, t.IndexURL)
	}
	if err := checkIndexes(urls); err != nil {
		return err
	}
	if !c.JobIndexes && (len(urls) > 0 || slices.ContainsFunc(t.FindLinks, requirement.IsURL)) {
		return requirement.ErrJobIndexes
	}
	return nil
}

func checkIndexes(urls []string) error {
	for _, u := range urls {
		if _, err := requirement.CheckURL(u); err != nil {
			return fmt.Errorf("an index: %w", err)
		}
	}
	return nil
}

// builder is the user that builds. An id need not have an account.
func builder(c *Config) (*syscall.Credential, error) {
	u, err := account.Resolve(c.BuildUser, nil)
	switch {
	case err != nil:
		return nil, fmt.Errorf("build_user: %w", err)
	case u == nil || u.UID == 0 || u.GID == 0:
		return nil, fmt.Errorf("build_user is root, or of its group: packages are not installed as root; name another user")
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID}, nil
}

// refuseBuilder refuses a task that has an id of the builder: it could change what is being built. u is nil where the
// task has the agent's own user.
func (d *instance) refuseBuilder(u *task.User) error {
	if d.builder == nil || u == nil {
		return nil
	}
	if u.UID == d.builder.Uid || u.GID == d.builder.Gid || slices.Contains(u.Groups, d.builder.Gid) {
		return fmt.Errorf("user %d, or group %d, builds what tasks of this node use (build_user), and runs no tasks: "+
			"set the task's user to another", d.builder.Uid, d.builder.Gid)
	}
	return nil
}
