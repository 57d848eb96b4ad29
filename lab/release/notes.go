// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// heading is that of a version in a changelog (keepachangelog.com): "## 0.1.0 - 2026-12-01", "## [0.1.0] - 2026-12-01".
var heading = regexp.MustCompile(`(?m)^## \[?([^\]\s]+)\]?.*$`)

// unreleased is the heading of what is in no version yet.
const unreleased = "Unreleased"

// Notes returns the text for a release's page: what the plugin's changelog says of a version, or of what is in none yet
// if it is empty. A section that is missing or empty is an error, so that nothing is released without it.
func Notes(o Options, version string) (string, error) {
	plugins, err := o.resolve()
	if err != nil {
		return "", err
	}
	if o.Plugin == "" {
		return "", fmt.Errorf("notes are those of one plugin: name it by -plugin=NAME")
	}
	p := plugins[0]
	text, err := os.ReadFile(filepath.Join(p.Dir, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	wanted, ref := strings.TrimPrefix(version, "v"), "HEAD"
	if wanted == "" {
		wanted = unreleased
	} else {
		ref = tagOf(p, wanted)
	}
	body, before, err := section(string(text), wanted)
	if err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Join(p.Dir, "CHANGELOG.md"), err)
	}
	body = absolute(body, "plugins/"+p.Name, ref)
	footer := fmt.Sprintf("[Documentation](%s/blob/%s/docs/%s.md)", Project, ref, p.Name)
	if before != "" {
		footer += fmt.Sprintf(", [all changes since %s](%s/compare/%s...%s)", before, Project, tagOf(p, before), ref)
	}
	return body + "\n\n" + footer + "\n", nil
}

// section returns the text of a version in a changelog, and the version before it, if there is one.
func section(changelog, version string) (body, before string, err error) {
	all := heading.FindAllStringSubmatchIndex(changelog, -1)
	for i, at := range all {
		if changelog[at[2]:at[3]] != version {
			continue
		}
		end := len(changelog)
		if i+1 < len(all) {
			end, before = all[i+1][0], changelog[all[i+1][2]:all[i+1][3]]
		}
		body = strings.TrimSpace(changelog[at[1]:end])
		if !strings.Contains(body, "\n- ") && !strings.HasPrefix(body, "- ") {
			return "", "", fmt.Errorf("the section of %s has no entry", version)
		}
		return body, before, nil
	}
	return "", "", fmt.Errorf("there is no section \"## %s\"", version)
}
