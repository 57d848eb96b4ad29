// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
)

// pyproject is the part of a pyproject.toml about requirements (PyPA's specifications of pyproject.toml and of
// dependency groups).
type pyproject struct {
	Project *struct {
		Name           string              `toml:"name"`
		RequiresPython string              `toml:"requires-python"`
		Dependencies   []string            `toml:"dependencies"`
		Optional       map[string][]string `toml:"optional-dependencies"`
		Dynamic        []string            `toml:"dynamic"`
	} `toml:"project"`
	Groups map[string][]any `toml:"dependency-groups"`
	Tool   struct {
		UV struct {
			Sources map[string]any `toml:"sources"`
			Dev     []any          `toml:"dev-dependencies"` // the group dev of before there were groups
		} `toml:"uv"`
	} `toml:"tool"`
}

// IsProject reports whether a file is a project by its name.
func IsProject(name string) bool { return path.Base(name) == "pyproject.toml" }

// Project reads what a project requires: its dependencies, and those of the chosen extras and groups. The project
// itself is not among them.
func (c Choice) Project(name string, read Reader) (*Set, error) {
	name = path.Clean(name)
	p := project{file: name, set: &Set{}, seen: map[string]bool{}}
	if err := decode("project", name, read, &p.pyproject); err != nil {
		return nil, err
	}
	p.index()
	if p.Project == nil && len(p.Groups) == 0 {
		return nil, fmt.Errorf("%s has no [project] table, which says what a project requires "+
			"(Poetry before 2.0 has a table of its own): write one, or export a requirements file", name)
	}
	c, err := p.check(name, c)
	if err != nil {
		return nil, err
	}
	if p.Project != nil {
		p.set.RequiresPython = and(p.Project.RequiresPython)
		if slices.Contains(p.Project.Dynamic, "dependencies") {
			return nil, fmt.Errorf("%s has dynamic dependencies, which are known only after a build of the project: "+
				"write them out, or lock them", name)
		}
		if err := p.requireAll("dependencies", p.Project.Dependencies, nil); err != nil {
			return nil, err
		}
	}
	for _, extra := range c.Extras {
		if err := p.extra(extra, nil); err != nil {
			return nil, err
		}
	}
	for _, group := range c.Groups {
		if err := p.group(group); err != nil {
			return nil, err
		}
	}
	p.set.sort()
	return p.set, nil
}

// check is the choice, if the project has all of it.
func (p *pyproject) check(file string, c Choice) (Choice, error) {
	groups := slices.Collect(maps.Keys(p.Groups))
	if len(p.Tool.UV.Dev) > 0 {
		groups = append(groups, "dev")
	}
	if p.Project == nil {
		return c.of(file, nil, groups)
	}
	if slices.Contains(p.Project.Dynamic, "optional-dependencies") && len(c.Extras) > 0 {
		return c, fmt.Errorf("%s has dynamic extras, which are known only after a build of the project: "+
			"write them out, or lock them", file)
	}
	return c.of(file, slices.Collect(maps.Keys(p.Project.Optional)), groups)
}

// maxRequirement bounds a requirement, and its marker with those of the extras around it, in bytes.
const maxRequirement = 4 << 10

// project is one while its requirements are collected.
type project struct {
	pyproject
	file string
	set  *Set
	seen map[string]bool // groups, and extras with their markers
	open []string        // extras, each within the one before
	done int             // requirements and extras

	// The content of the file by normalised names.
	name    string
	extras  map[string][]string
	groups  map[string][]any
	sources map[string]bool // except for the project itself
}

func (p *project) index() {
	p.extras, p.groups, p.sources = map[string][]string{}, map[string][]any{}, map[string]bool{}
	for name, list := range p.Groups {
		p.groups[ProjectName(name)] = append(p.groups[ProjectName(name)], list...)
	}
	p.groups["dev"] = append(p.groups["dev"], p.Tool.UV.Dev...)
	for name := range p.Tool.UV.Sources {
		p.sources[ProjectName(name)] = true
	}
	if p.Project == nil {
		return
	}
	p.name = ProjectName(p.Project.Name)
	delete(p.sources, p.name)
	for name, list := range p.Project.Optional {
		p.extras[ProjectName(name)] = append(p.extras[ProjectName(name)], list...)
	}
}

// requireAll adds requirements under the marker when. One that names the project itself stands for its extras.
func (p *project) requireAll(where string, list []string, when *marker) error {
	for _, text := range list {
		r, err := p.parse(text, when)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", p.file, where, err)
		}
		if r.name != p.name {
			p.set.add(r)
			continue
		}
		for _, extra := range r.extras {
			if err := p.extra(ProjectName(extra), r.marker); err != nil {
				return err
			}
		}
	}
	return nil
}

// count bounds the work: extras and markers in each other multiply what a small file has.
func (p *project) count() error {
	if p.done++; p.done > maxLines {
		return errors.New("there is more than a program can require")
	}
	return nil
}

func (p *project) parse(text string, when *marker) (requirement, error) {
	if err := p.count(); err != nil {
		return requirement{}, err
	}
	if len(text) > maxRequirement {
		return requirement{}, fmt.Errorf("%s is longer than %d KiB", show(text), maxRequirement>>10)
	}
	if err := checkText(text); err != nil {
		return requirement{}, err
	}
	r, err := parse(text)
	if err == nil {
		err = r.checkPlain()
	}
	if err != nil {
		return r, err
	}
	if when != nil && r.marker != nil {
		r.marker = join("and", []*marker{when, r.marker})
		if len(r.marker.String()) > maxRequirement {
			return r, fmt.Errorf("the marker of %s, with those of the extras around it, is longer than %d KiB",
				show(text), maxRequirement>>10)
		}
	} else if when != nil {
		r.marker = when
	}
	if p.sources[r.name] { // an index may have something else under that name
		return r, fmt.Errorf("%s comes from where only uv looks (tool.uv.sources): "+
			"lock the project, and name its uv.lock", show(r.name))
	}
	return r, nil
}

// extra adds the requirements of an extra, whose name is normalised.
func (p *project) extra(name string, when *marker) error {
	list, ok := p.extras[name]
	if !ok {
		_, err := p.check(p.file, Choice{Extras: []string{name}})
		return err
	}
	if slices.Contains(p.open, name) { // its requirements are added already, under a weaker marker
		return nil
	}
	if err := p.count(); err != nil {
		return fmt.Errorf("%s: extra %s: %w", p.file, name, err)
	}
	key := "extra " + name
	if when != nil {
		key += " " + when.String()
	}
	if p.seen[key] {
		return nil
	}
	p.seen[key] = true
	p.open = append(p.open, name)
	err := p.requireAll("extra "+name, list, when)
	p.open = p.open[:len(p.open)-1]
	return err
}

// group adds the requirements of a group and of the groups that it includes.
func (p *project) group(name string) error {
	if p.seen["group "+name] {
		return nil
	}
	p.seen["group "+name] = true
	for _, entry := range p.groups[name] {
		var err error
		switch e := entry.(type) {
		case string:
			err = p.requireAll("dependency group "+name, []string{e}, nil)
		case map[string]any:
			included, _ := e["include-group"].(string)
			if included == "" || len(e) != 1 {
				return fmt.Errorf("%s: dependency group %s has an entry that is neither a requirement "+
					"nor {include-group = \"NAME\"}", p.file, name)
			}
			if p.groups[ProjectName(included)] == nil {
				_, err = p.check(p.file, Choice{Groups: []string{included}})
			} else {
				err = p.group(ProjectName(included))
			}
		default:
			return fmt.Errorf("%s: dependency group %s has an entry that is no string: "+
				"write it such as \"requests>=2.31\"", p.file, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
