// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

// Choice is the optional parts of a project, or of its lock, that are wanted.
type Choice struct {
	Extras []string // of [project.optional-dependencies]
	Groups []string // of [dependency-groups] (PEP 735)
}

func (c Choice) empty() bool { return len(c.Extras) == 0 && len(c.Groups) == 0 }

// of is the choice with normalised names, sorted, each once. A name that the file does not have is an error.
func (c Choice) of(file string, extras, groups []string) (Choice, error) {
	e, err := choose(file, "extra", c.Extras, extras)
	if err != nil {
		return c, err
	}
	g, err := choose(file, "dependency group", c.Groups, groups)
	return Choice{e, g}, err
}

func choose(file, kind string, want, has []string) ([]string, error) {
	want, has = normalised(want), normalised(has)
	for _, name := range want {
		if slices.Contains(has, name) {
			continue
		}
		if len(has) == 0 {
			has = []string{"none"}
		}
		return nil, fmt.Errorf("%s has no %s %s: there is %s", file, kind, show(name),
			plain.Line(strings.Join(has, ", "), 2*maxShown))
	}
	return want, nil
}

func normalised(names []string) []string {
	var list []string
	for _, name := range names {
		list = append(list, ProjectName(name))
	}
	return sorted(list)
}
