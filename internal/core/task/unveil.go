// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"fmt"
	"path"
	"strings"
)

// Unveil confines a program and its descendants to some paths by Landlock (landlock(7)). It also prevents mounts and
// privilege gains (no_new_privs).
type Unveil struct {
	Paths []UnveiledPath `json:"paths"`

	// Defaults adds the paths that most programs need.
	Defaults bool `json:"defaults,omitempty"`

	// Strict prevents the program's start if the kernel cannot deny access to all other paths.
	Strict bool `json:"strict,omitempty"`
}

// UnveiledPath is a file, or a directory with everything below it. The launcher opens it as the program's user. A path
// that this user cannot reach has no effect.
type UnveiledPath struct {
	Path  string `json:"path"`  // absolute
	Modes string `json:"modes"` // any of r, w, x and c; see landlock.Modes

	// Optional is set if the path may be missing.
	Optional bool `json:"optional,omitempty"`

	// Author is set if the job's author, not the operator, has named the path. In an operator's path, only links that
	// belong to root are followed, because a task may have created other links.
	Author bool `json:"author,omitempty"`
}

// ParseUnveiled parses one path of an option, in the format of Nomad's exec2 driver: "r:/etc/mime.types".
func ParseUnveiled(option, text string) (UnveiledPath, error) {
	modes, at, found := strings.Cut(text, ":")
	switch {
	case !found || modes == "" || strings.Trim(modes, "rwxc") != "":
		return UnveiledPath{}, fmt.Errorf("%s: %q does not begin with access rights: use r, w, x and c (read, "+
			"write, execute, create), then a colon and a path, for example \"r:/etc/mime.types\"", option, text)
	case !path.IsAbs(at):
		return UnveiledPath{}, fmt.Errorf("%s: the path in %q is not absolute: begin it with /", option, text)
	}
	return UnveiledPath{Path: path.Clean(at), Modes: modes}, nil
}

// Reveal adds optional paths to Unveil, if the program is confined.
func (c *Command) Reveal(modes string, paths ...string) {
	for _, path := range paths {
		if c.Unveil != nil {
			c.Unveil.Paths = append(c.Unveil.Paths, UnveiledPath{Path: path, Modes: modes, Optional: true})
		}
	}
}
