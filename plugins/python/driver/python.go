// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/install"
)

var (
	// specifier matches what uv takes for versions, and not for a path that it would run.
	specifier = regexp.MustCompile(`^(?:(?:cpython|pypy|graalpy)@?)?` +
		`(?:` + version + `t?|` + clause + `(?:,` + clause + `)*,?)?$`)
	named = regexp.MustCompile(`^[a-z]+`)
)

const (
	version = `[0-9]+(?:\.[0-9]+)*(?:(?:a|b|rc)[0-9]+)?`
	clause  = ` *(?:~=|===?|!=|<=?|>=?) *` + version + `(?:\.\*)? *`

	maxSpecifier = 1000
)

var errNoPython = errors.New("no Python interpreter that tasks can run is on this node: install one, or name its " +
	"directory with interpreters in the plugin's config")

// choose finds the best interpreter that the job, the program and its project or lock agree on.
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
		{"python", job}, {"requires-python of the script", script}, {"requires-python of the project or lock", project},
	} {
		if w.versions == "" {
			continue
		}
		if len(w.versions) > maxSpecifier || !specifier.MatchString(w.versions) {
			return install.Python{}, fmt.Errorf("%s: %.80q is not a version specifier: write versions such as "+
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
			return !slices.ContainsFunc(these, func(fits install.Python) bool { return fits.Path == p.Path })
		})
		wanted = append(wanted, w.source+" "+w.versions)
	}
	if len(fitting) == 0 {
		return install.Python{}, fmt.Errorf("%s is not on this node, which has %s: let a constraint on "+
			"${attr.driver.python.versions} keep the job to nodes that have it", strings.Join(wanted, " and "),
			versionsOf(all))
	}
	return fitting[0], nil
}

// versionsOf are minor and full versions, each once, for set_contains and set_contains_any. A minor version with only
// pre-releases is not among them: ">=3.15" does not allow 3.15.0rc1 (PEP 440).
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
