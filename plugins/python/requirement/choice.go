// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"fmt"
	"slices"
	"strings"
)

// Choice is the optional parts of a project, or of its lock, that are wanted.
type Choice struct {
	Extras []string // of [project.optional-dependencies]
	Groups []string // of [dependency-groups] (PEP 735)
}

func (c Choice) empty() bool { return len(c.Extras) == 0 && len(c.Groups) == 0 }

// of is the choice with normalised names, sorted, each once. A name that the file does not have is an error.
func (c Choice) of(file string, extras, groups []string) (Choice, error) {
	var chosen Choice
	for _, kind := range []struct {
		word      string
		want, has []string
		chosen    *[]string
	}{{"extra", c.Extras, extras, &chosen.Extras}, {"dependency group", c.Groups, groups, &chosen.Groups}} {
		var has []string
		for _, name := range kind.has {
			has = append(has, ProjectName(name))
		}
		for _, name := range kind.want {
			if !slices.Contains(has, ProjectName(name)) {
				there := "none"
				if len(has) > 0 {
					there = strings.Join(sorted(has), ", ")
				}
				return chosen, fmt.Errorf("%s has no %s %s: there is %s", file, kind.word, show(name), plain(there))
			}
			*kind.chosen = append(*kind.chosen, ProjectName(name))
		}
		*kind.chosen = sorted(*kind.chosen)
	}
	return chosen, nil
}
