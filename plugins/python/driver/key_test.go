// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

func TestEnvironmentKey_HidesPasswordsOfURLs(t *testing.T) {
	c := schema.Of[Config]().Default()
	of := func(secret string) (string, string) {
		set, err := requirement.List([]string{"moon-phase @ https://host/moon_phase-1.2-py3-none-any.whl"})
		must.NoError(t, err)
		job := &TaskConfig{ExtraIndexURLs: []string{"https://user:" + secret + "@host/simple"}}
		src, err := newSources(t.Context(), &c, job, taskFiles{}, set)
		must.NoError(t, err)
		text, secret, err := environmentKey(install.Python{}, install.Installer{}, set, src, false)
		must.NoError(t, err)
		return text, secret
	}
	one, secret := of("hunter2")
	two, other := of("swordfish")
	must.StrNotContains(t, one, "hunter2", must.Sprint("shown"))
	test.Eq(t, two, one, test.Sprint("shown"))
	must.NotEq(t, secret, other)
	test.StrContains(t, one, "//host/moon_phase-1.2-py3-none-any.whl")
}

func TestEnvironmentKey_DependsOnEachInput(t *testing.T) {
	type parts struct {
		python    install.Python
		installer install.Installer
		set       requirement.Set
		src       sources
		refresh   bool
	}
	of := func(change func(*parts)) string {
		p := parts{set: requirement.Set{UVLock: &requirement.UVLock{}}}
		change(&p)
		_, secret, err := environmentKey(p.python, p.installer, &p.set, &p.src, p.refresh)
		must.NoError(t, err)
		return secret
	}
	names := map[string]string{}
	extra, group := requirement.Choice{Extras: []string{"x"}}, requirement.Choice{Groups: []string{"x"}}
	for name, change := range map[string]func(*parts){
		"nothing":                   func(*parts) {},
		"the interpreter":           func(p *parts) { p.python.Key = "x" },
		"the interpreter's path":    func(p *parts) { p.python.Path = "x" },
		"the interpreter's file":    func(p *parts) { p.python.File = "x" },
		"the installer's version":   func(p *parts) { p.installer.Version = "x" },
		"hashes":                    func(p *parts) { p.set.Hashed = true },
		"a lock":                    func(p *parts) { p.set.Complete = true },
		"a requirement":             func(p *parts) { p.set.Lines = []string{"x"} },
		"a constraint":              func(p *parts) { p.set.Constraints = []string{"x"} },
		"a requirement's secret":    func(p *parts) { p.set.Lines = []string{"x @ https://u:one@h/x.whl"} },
		"another secret":            func(p *parts) { p.set.Lines = []string{"x @ https://u:two@h/x.whl"} },
		"a constraint's secret":     func(p *parts) { p.set.Constraints = []string{"x @ https://u:one@h/x.whl"} },
		"another constraint secret": func(p *parts) { p.set.Constraints = []string{"x @ https://u:two@h/x.whl"} },
		"an override":               func(p *parts) { p.set.Overrides = []string{"x"} },
		"a date":                    func(p *parts) { p.set.NewerThan = "x" },
		"a project":                 func(p *parts) { p.set.Projects = []requirement.Project{{Text: []byte("x")}} },
		"a project's extra":         func(p *parts) { p.set.Projects = []requirement.Project{{Choice: extra}} },
		"a project's group":         func(p *parts) { p.set.Projects = []requirement.Project{{Choice: group}} },
		"uv's lock":                 func(p *parts) { p.set.UVLock.Lock = []byte("x") },
		"uv's project":              func(p *parts) { p.set.UVLock.Project = []byte("x") },
		"no uv.lock":                func(p *parts) { p.set.UVLock = nil },
		"the index":                 func(p *parts) { p.src.Indexes.URL = "https://x" },
		"another index":             func(p *parts) { p.src.Indexes.Extra = []string{"https://x"} },
		"the job's wheels":          func(p *parts) { p.src.Wheels = []string{"x"} },
		"a page of wheels":          func(p *parts) { p.src.Indexes.FindLinks = []string{"https://x"} },
		"the credentials":           func(p *parts) { p.src.netrc = []byte("x") },
		"a refresh":                 func(p *parts) { p.refresh = true },
		"no index":                  func(p *parts) { p.src.Indexes.Offline = true },
	} {
		k := of(change)
		other, ok := names[k]
		test.False(t, ok, test.Sprintf("%s and %s have the same key:\n%s", name, other, k))
		names[k] = name
	}
}
