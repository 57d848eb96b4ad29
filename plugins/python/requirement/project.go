// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Project is the part of a project or a script that uv reads.
type Project struct {
	Text Content // a pyproject.toml without a build system, and with only those settings of uv that type tool has
	Choice
}

// pyproject is the part of a pyproject.toml about requirements (PyPA's specifications of pyproject.toml and of
// dependency groups).
type pyproject struct {
	Project *projectTable    `toml:"project"`
	Groups  map[string][]any `toml:"dependency-groups,omitempty"`
	Tool    tool             `toml:"tool"`
}

type projectTable struct {
	Name           string              `toml:"name"`
	Version        string              `toml:"version"`
	RequiresPython string              `toml:"requires-python,omitempty"`
	Dependencies   []string            `toml:"dependencies"`
	Optional       map[string][]string `toml:"optional-dependencies,omitempty"`
	Dynamic        []string            `toml:"dynamic,omitempty"`
}

// tool has uv's settings that this driver passes on, and the tables of other tools, whose sources it refuses.
type tool struct {
	UV struct {
		Sources     map[string]any   `toml:"sources,omitempty"`
		Indexes     []map[string]any `toml:"index,omitempty"`
		Constraints []string         `toml:"constraint-dependencies,omitempty"`
		Overrides   []string         `toml:"override-dependencies,omitempty"`
		NewerThan   string           `toml:"exclude-newer,omitempty"`
	} `toml:"uv"`
	Poetry map[string]any `toml:"poetry,omitempty"`
	PDM    map[string]any `toml:"pdm,omitempty"`
}

// Project reads the requirements of a project: its dependencies, and those of the chosen extras and groups, but not the
// project itself.
func (c Choice) Project(name string, read Reader) (*Set, error) {
	name = path.Clean(name)
	var p pyproject
	content, err := read(name)
	if err != nil {
		return nil, fmt.Errorf("failed to read project %s: %w", name, err)
	}
	if err := decode(content, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if p.Project == nil && len(p.Groups) == 0 {
		return nil, fmt.Errorf("%s has no [project] table (Poetry before 2.0 uses its own table): "+
			"add a [project] table with the requirements, or export a requirements file", name)
	}
	s, err := p.set(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// set returns the requirements for uv. It refuses those that uv would have to build, and sources that uv ignores.
func (p *pyproject) set(c Choice) (*Set, error) {
	project := projectTable{Name: "project"}
	if p.Project != nil {
		project = *p.Project
	}
	for _, dynamic := range []string{"dependencies", "optional-dependencies"} {
		if slices.Contains(project.Dynamic, dynamic) {
			return nil, fmt.Errorf("the project's %s are dynamic, and the driver does not build projects: "+
				"list them in the project, or use a lock", dynamic)
		}
	}
	if p.Tool.Poetry["source"] != nil || p.Tool.PDM["source"] != nil {
		return nil, fmt.Errorf("the project has package sources for Poetry or PDM, which uv ignores: " +
			"lock the project with uv, or remove the sources and set index_url")
	}
	s := &Set{
		RequiresPython: project.RequiresPython, Constraints: p.Tool.UV.Constraints, Overrides: p.Tool.UV.Overrides,
		NewerThan: p.Tool.UV.NewerThan, Names: len(p.Tool.UV.Sources)+len(p.Tool.UV.Indexes) > 0,
	}
	all := slices.Concat(project.Dependencies, s.Constraints, s.Overrides)
	for _, list := range project.Optional {
		all = append(all, list...)
	}
	for _, group := range p.Groups {
		for _, entry := range group {
			if text, ok := entry.(string); ok {
				all = append(all, text)
			}
		}
	}
	for _, text := range all {
		if err := checkText(text); err != nil {
			return nil, fmt.Errorf("%s: %w", show(text), err)
		}
		names, err := checkRequirement(text)
		if err != nil {
			return nil, err
		}
		s.Names = s.Names || names
	}
	for name, source := range p.Tool.UV.Sources {
		if err := checkSource(name, source); err != nil {
			return nil, err
		}
	}
	project.Version, project.Dynamic = "0", nil // a dynamic version would need a build
	sanitised := pyproject{Project: &project, Groups: p.Groups, Tool: tool{UV: p.Tool.UV}}
	text, err := toml.Marshal(sanitised)
	if err != nil {
		return nil, err
	}
	s.Projects = []Project{{text, c}}
	return s, nil
}

// checkSource allows only indexes and URLs of wheels: uv 0.6.14 builds an editable source even with --no-build.
func checkSource(name string, source any) error {
	list, ok := source.([]any)
	if !ok {
		list = []any{source}
	}
	for _, one := range list {
		table, _ := one.(map[string]any)
		for key := range table {
			if !slices.Contains([]string{"index", "url", "marker", "extra", "group"}, key) {
				return fmt.Errorf("%s comes from a source tree (%s in tool.uv.sources): build a wheel, and use the wheel's URL, "+
					"or add its directory to find_links", show(name), key)
			}
		}
		if url, ok := table["url"]; ok {
			if _, err := checkRequirement(fmt.Sprint(url)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Script is the metadata that a script declares (PEP 723, inline script metadata).
type Script struct {
	RequiresPython string   `toml:"requires-python"` // a PEP 440 specifier, may be empty
	Dependencies   []string `toml:"dependencies"`    // PEP 508 requirements
	Tool           tool     `toml:"tool"`
}

// Set returns the requirements of the script.
func (s *Script) Set() (*Set, error) {
	if len(s.Dependencies) == 0 {
		return &Set{}, nil
	}
	p := pyproject{Project: &projectTable{Name: "script", Dependencies: s.Dependencies}, Tool: s.Tool}
	return p.set(Choice{})
}

// MaxScript is the maximum size of a source that is searched for metadata, in bytes.
const MaxScript = 1 << 20

// block is the reference expression of PEP 723. Its two groups are the type and the content of a block. It does not
// match lines that end with "\r\n".
var block = regexp.MustCompile(`(?m)^# /// ([a-zA-Z0-9-]+)$\s((?:^#(?:| .*)$\s)+)^# ///$`)

// sign matches the comment sign at the beginning of each line of a block.
var sign = regexp.MustCompile(`(?m)^# ?`)

// ReadScript returns the metadata of a script's source, or the zero value if it has none. Errors are one line with the
// line number in the script.
func ReadScript(source []byte) (Script, error) {
	source = bytes.TrimPrefix(source, []byte("\uFEFF"))
	source = bytes.ReplaceAll(source, []byte("\r\n"), []byte("\n")) // as Python reads its sources
	var content []byte
	line := 0 // the number of the first line of the script's block
	for _, at := range block.FindAllSubmatchIndex(source, -1) {
		if string(source[at[2]:at[3]]) != "script" {
			continue
		}
		here := 1 + bytes.Count(source[:at[0]], []byte("\n"))
		if line > 0 {
			return Script{}, fmt.Errorf("line %d: a second \"# /// script\" block, after the one on line %d: "+
				"keep only one (PEP 723)", here, line)
		}
		content, line = source[at[4]:at[5]], here
	}
	if line == 0 {
		return Script{}, nil
	}
	var s Script
	lines := bytes.Repeat([]byte("\n"), line) // so line numbers in errors are the script's
	if err := decode(append(lines, sign.ReplaceAll(content, nil)...), &s); err != nil {
		return Script{}, fmt.Errorf("\"# /// script\" block: %w", err)
	}
	s.RequiresPython = strings.TrimSpace(s.RequiresPython)
	return s, nil
}
