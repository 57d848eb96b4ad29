// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"gopkg.in/yaml.v3"
)

// form is an issue form, with all fields that GitHub accepts. GitHub ignores a form that has a mistake.
type form struct {
	Name, Description string
	Title             string
	Labels            []string
	Body              []struct {
		Type, ID    string
		Attributes  map[string]any
		Validations map[string]bool
	}
}

func TestIssueForms_AreValid(t *testing.T) {
	files, err := filepath.Glob("../../.github/ISSUE_TEMPLATE/*.yml")
	must.NoError(t, err)
	must.Greater(t, 3, len(files))
	names := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		if filepath.Base(file) == "config.yml" {
			continue
		}
		for _, fault := range formFaults(string(text)) {
			t.Errorf("%s: %s", file, fault)
		}
		var f form
		must.NoError(t, yaml.Unmarshal(text, &f))
		test.Eq(t, "", names[f.Name], test.Sprint(file, "has the name of another form"))
		names[f.Name] = file
	}
}

func TestFormFaults_ReportsEachKindOfFault(t *testing.T) {
	const head = "name: A\ndescription: B\nbody:\n"
	const area = "  - type: textarea\n    id: x\n    attributes: {label: L}\n"
	for text, want := range map[string]string{
		head + area:               "",
		"name: A\nbody:\n" + area: "description",
		head + area + area:        "two elements",
		head + strings.Replace(area, "textarea", "text", 1):                                 "type",
		head + strings.Replace(area, "label: L", "labl: L", 1):                              "label",
		head + strings.Replace(area, "textarea", "dropdown", 1):                             "options",
		head + "  - type: markdown\n    attributes: {value: V}\n":                           "nothing to fill in",
		head + area + "    colour: red\n":                                                   "colour",
		head + area + "  - type: markdown\n    attributes: {value: V}\n":                    "",
		head + strings.Replace(area, "id: x", "id: x\n    validations: {requird: true}", 1): "requird",
	} {
		faults := formFaults(text)
		if want == "" {
			must.SliceEmpty(t, faults, must.Sprint(text))
		} else {
			must.SliceNotEmpty(t, faults, must.Sprint(text))
			must.StrContains(t, strings.Join(faults, "\n"), want)
		}
	}
}

func formFaults(text string) []string {
	var faults []string
	var f form
	decoder := yaml.NewDecoder(strings.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&f); err != nil {
		return []string{err.Error()}
	}
	if f.Name == "" || f.Description == "" {
		faults = append(faults, "the form lacks a name or a description")
	}
	ids := map[string]bool{}
	inputs := 0
	for _, e := range f.Body {
		want := []string{"label"}
		switch e.Type {
		case "input", "textarea":
		case "dropdown", "checkboxes":
			want = append(want, "options")
		case "markdown":
			want = []string{"value"}
		default:
			faults = append(faults, "unknown type "+e.Type)
		}
		for _, name := range want {
			if e.Attributes[name] == nil {
				faults = append(faults, e.ID+" lacks "+name)
			}
		}
		for name := range e.Validations {
			if name != "required" {
				faults = append(faults, e.ID+" has an unknown validation "+name)
			}
		}
		if e.Type == "markdown" {
			continue
		}
		if inputs++; ids[e.ID] {
			faults = append(faults, "two elements have the id "+e.ID)
		}
		ids[e.ID] = true
	}
	if inputs == 0 {
		faults = append(faults, "the form has nothing to fill in")
	}
	return faults
}

func TestCodeowners_NamesExistingFiles(t *testing.T) {
	text, err := os.ReadFile("../../.github/CODEOWNERS")
	must.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		must.Greater(t, 1, len(words), must.Sprint(line))
		if words[0] != "*" {
			_, err := os.Stat(filepath.Join("../..", words[0]))
			test.NoError(t, err)
		}
		for _, owner := range words[1:] {
			test.RegexMatch(t, regexp.MustCompile(`^@[\w-]+(/[\w-]+)?$`), owner)
		}
	}
}
