// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"path"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// maxRequirements bounds a requirements file or a lock.
const maxRequirements = 4 << 20

// readRequirements returns the requirements of the job and of the program together. A lock is complete, so that those
// of the program are not added to it.
func readRequirements(t *TaskConfig, files taskFiles, p program) (*requirement.Set, error) {
	read := func(name string) ([]byte, error) { return files.read(name, maxRequirements) }
	choice := requirement.Choice{Extras: t.Extras, Groups: t.DepGroups}
	if t.Lock != "" {
		return choice.Lock(t.Lock, read)
	}
	declared, err := p.metadata.Set()
	if err != nil {
		return nil, err
	}
	var listed *requirement.Set
	switch {
	case t.isProject():
		listed, err = choice.Project(t.Requirements[0], read)
	case len(t.Requirements) == 1 && isFileName(t.Requirements[0]):
		listed, err = requirement.File(t.Requirements[0], read)
	default:
		listed, err = requirement.List(t.Requirements)
	}
	if err != nil {
		return nil, err
	}
	return listed, listed.Add(declared)
}

// isProject reports whether the requirements are those of a project.
func (t *TaskConfig) isProject() bool {
	return len(t.Requirements) == 1 && requirement.IsProject(t.Requirements[0])
}

// isFileName distinguishes a file from a requirement, which has neither a slash nor such an ending, unless it is
// "name @ https://…" or the URL of a wheel.
func isFileName(text string) bool {
	if strings.Contains(text, "@") || strings.Contains(text, "://") {
		return false
	}
	return strings.Contains(text, "/") || path.Ext(text) == ".txt" || path.Ext(text) == ".in"
}
