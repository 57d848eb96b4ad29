package requirement

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
)

// pyproject is what a pyproject.toml says of what a project requires (PyPA's specifications of pyproject.toml and of
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
			Dev     []any          `toml:"dev-dependencies"` // what the group dev was before there were groups
		} `toml:"uv"`
	} `toml:"tool"`
}

// IsProject says whether a file is a project by its name.
func IsProject(name string) bool { return path.Base(name) == "pyproject.toml" }

// Project reads what a project requires: its dependencies and, of its extras and groups, those that are chosen. The
// project itself is not among them.
func (c Choice) Project(name string, read Reader) (*Set, error) {
	name = path.Clean(name)
	p := project{file: name, set: &Set{}, seen: map[string]bool{}}
	if err := decode("project", name, read, &p.pyproject); err != nil {
		return nil, err
	}
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
			return nil, fmt.Errorf("%s has dynamic dependencies, which only a build of the project tells: "+
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

// check is the choice of what the project has.
func (p *pyproject) check(file string, c Choice) (Choice, error) {
	groups := slices.Collect(maps.Keys(p.Groups))
	if len(p.Tool.UV.Dev) > 0 {
		groups = append(groups, "dev")
	}
	if p.Project == nil {
		return c.of(file, nil, groups)
	}
	if slices.Contains(p.Project.Dynamic, "optional-dependencies") && len(c.Extras) > 0 {
		return c, fmt.Errorf("%s has dynamic extras, which only a build of the project tells: "+
			"write them out, or lock them", file)
	}
	return c.of(file, slices.Collect(maps.Keys(p.Project.Optional)), groups)
}

// project is one while its requirements are collected.
type project struct {
	pyproject
	file string
	set  *Set
	seen map[string]bool // groups, and extras with their markers
	done int
}

func (p *project) requireAll(where string, list []string, when *marker) error {
	for _, text := range list {
		if err := p.require(text, when); err != nil {
			return fmt.Errorf("%s: %s: %w", p.file, where, err)
		}
	}
	return nil
}

// require adds a requirement, for where when holds. One of the project itself is of its extras.
func (p *project) require(text string, when *marker) error {
	if p.done++; p.done > maxLines {
		return errors.New("there is more than a program can require")
	}
	if err := checkText(text); err != nil {
		return err
	}
	r, err := parse(text)
	if err == nil {
		err = r.checkPlain()
	}
	if err != nil {
		return err
	}
	switch {
	case when != nil && r.marker != nil:
		r.marker = join("and", []*marker{when, r.marker})
	case when != nil:
		r.marker = when
	}
	if p.Project != nil && r.name == ProjectName(p.Project.Name) {
		c, err := p.check(p.file, Choice{Extras: r.extras})
		if err != nil {
			return err
		}
		for _, extra := range c.Extras {
			if err := p.extra(extra, r.marker); err != nil {
				return err
			}
		}
		return nil
	}
	for name := range p.Tool.UV.Sources { // an index may have something else under that name
		if ProjectName(name) == r.name {
			return fmt.Errorf("%s comes from where only uv looks (tool.uv.sources): "+
				"lock the project, and name its uv.lock", show(r.name))
		}
	}
	p.set.add(r)
	return nil
}

// extra adds what an extra requires. Its name is as names are compared.
func (p *project) extra(name string, when *marker) error {
	key := "extra " + name
	if when != nil {
		key += " " + when.String()
	}
	if p.seen[key] {
		return nil
	}
	p.seen[key] = true
	for has, list := range p.Project.Optional {
		if ProjectName(has) == name {
			if err := p.requireAll("extra "+name, list, when); err != nil {
				return err
			}
		}
	}
	return nil
}

// group adds what a group requires, and those that it includes.
func (p *project) group(name string) error {
	if p.seen["group "+name] {
		return nil
	}
	p.seen["group "+name] = true
	var all []any
	for has, list := range p.Groups {
		if ProjectName(has) == name {
			all = append(all, list...)
		}
	}
	if name == "dev" {
		all = append(all, p.Tool.UV.Dev...)
	}
	for _, entry := range all {
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
			c, checkErr := p.check(p.file, Choice{Groups: []string{included}})
			if checkErr != nil {
				return checkErr
			}
			err = p.group(c.Groups[0])
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
