// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/python/environment"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

var (
	// specifier matches requests that uv reads as versions, never as the path of a program to run.
	specifier = regexp.MustCompile(`^(?:(?:cpython|pypy|graalpy)@?)?` +
		`(?:` + version + `t?|` + clause + `(?:,` + clause + `)*,?)?$`)
	named = regexp.MustCompile(`^[a-z]+`)
)

const (
	version = `[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?`
	clause  = ` *(?:~=|===?|!=|<=?|>=?) *` + version + `(?:\.\*)? *`
)

var errNoPython = errors.New("this node has no Python interpreter that tasks can run: install one, or set interpreters")

// choose returns the best interpreter that satisfies the job, the script, and the project or lock. Its Path is empty if
// the interpreter has to be installed.
func (d *instance) choose(ctx context.Context, job, script, project string) (install.Python, error) {
	all, err := d.uv.Pythons(ctx, "")
	if err != nil {
		return install.Python{}, err
	}
	if len(all) == 0 {
		return install.Python{}, errNoPython
	}
	fitting := all
	var wanted []string
	for _, w := range []struct{ source, versions string }{
		{"python", job}, {"the script's requires-python", script}, {"the project's or lock's requires-python", project},
	} {
		if w.versions == "" {
			continue
		}
		if !specifier.MatchString(w.versions) {
			return install.Python{}, fmt.Errorf("%s: %.80q is not a version specifier: use for example "+
				"\">=3.11,<3.14\", \"3.12\" or \"pypy3.9\"", w.source, w.versions)
		}
		request := w.versions
		if named.FindString(request) == "" {
			request = named.FindString(job) + strings.ReplaceAll(request, " ", "")
		}
		these, err := d.uv.Pythons(ctx, strings.TrimSuffix(request, ","))
		if err != nil {
			return install.Python{}, err
		}
		fitting = slices.DeleteFunc(slices.Clone(fitting), func(p install.Python) bool {
			return !slices.ContainsFunc(these, func(fits install.Python) bool {
				return fits.Path == p.Path && fits.Key == p.Key
			})
		})
		wanted = append(wanted, w.source+" "+w.versions)
	}
	if len(fitting) == 0 {
		return install.Python{}, fmt.Errorf("%s is not on this node, which has %s: add a constraint on "+
			"${attr.driver.python.versions} to place the job on another node", strings.Join(wanted, " and "),
			versionsOf(all))
	}
	return fitting[0], nil
}

// versionsOf lists the minor and full versions of interpreters ("3.11,3.11.2"), each once, for constraints with
// set_contains and set_contains_any. A pre-release adds no minor version: ">=3.15" does not allow 3.15.0rc1 (PEP 440).
func versionsOf(pythons []install.Python) string {
	var minors, versions []string
	for _, p := range pythons {
		versions = append(versions, p.Version)
		parts := strings.SplitN(p.Version, ".", 3)
		if minor := strings.Join(parts[:min(2, len(parts))], "."); !strings.ContainsAny(p.Version, "abr") {
			minors = append(minors, minor)
		}
	}
	slices.Sort(minors)
	slices.Sort(versions)
	return strings.Join(slices.Concat(slices.Compact(minors), slices.Compact(versions)), ",")
}

// install returns an interpreter from the cache. If it is missing, uv downloads it. It is sealed like an environment.
func (d *instance) install(
	ctx context.Context, r request, cmd *task.Command, uv install.Installer, python install.Python,
) (install.Python, error) {
	env, err := d.get(ctx, r, cmd, fmt.Sprintf("with %s, which installs the interpreter %s", uv, python), environment.Spec{
		Key: fmt.Sprintf("%s, installed by %s (format %d)", python.Key, uv, format),
		Build: func(ctx context.Context, dir, scratch string) error {
			return uv.InstallPython(ctx, install.Request{
				Python: python, Dir: dir, Work: scratch, As: d.builder, Sources: requirement.Sources{Offline: true},
				MaxSize: d.config.CacheMaxSize.Bytes(),
			})
		},
	})
	if err != nil {
		return python, err
	}
	python.Path, err = filepath.EvalSymlinks(filepath.Join(env.Dir, python.Key, "bin/python3"))
	return python, err
}
