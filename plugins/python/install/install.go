// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package install creates virtual environments with uv, from wheels alone: no code of a package runs. It runs uv by its
// documented options, as a user without other rights on the node.
package install

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Installer is a uv. The zero value is none.
type Installer struct {
	Path    string
	Version string
}

func (i Installer) String() string { return "uv " + i.Version }

// Request describes an environment to create.
type Request struct {
	Python       interpreter.Interpreter
	Requirements *requirement.Set
	Sources      index.Sources // with absolute directories; URL is never empty unless Offline
	Netrc        []byte        // credentials of indexes, may be empty

	// Dir is the empty directory in which to create the environment, Work one for temporary files, Downloads one for
	// what uv keeps for other builds, which may run at the same time, or "". All of them belong to As.
	Dir, Work, Downloads string

	// Refresh asks the indexes again, even if Downloads has their pages.
	Refresh bool

	// As is the user that runs the installer, nil for this process's user.
	As *syscall.Credential

	// MaxSize bounds the environment, its temporary files and its downloads, in bytes; 0 is no limit.
	MaxSize int64

	// Progress is called with each line of uv's output. It may be nil.
	Progress func(string) `json:"-"`
}

// Result describes a new environment.
type Result struct {
	Packages []string // "requests 2.31.0", sorted
	Warnings []string // of the installer, for example about an extra that a package does not have
	Took     time.Duration
}

// Install creates the environment: virtual environment, packages, bytecode. The files belong to As. When ctx ends, or
// this process is killed, uv is killed. The error is an *Error if the
// installer failed.
func (i Installer) Install(ctx context.Context, r Request) (*Result, error) {
	begun := time.Now()
	if err := i.reads(r.Requirements); err != nil {
		return nil, err
	}
	b, err := i.begin(r)
	if err != nil {
		return nil, err
	}
	defer b.end()
	if err := b.prepare(); err != nil {
		return nil, err
	}
	if err := b.tool(ctx, b.uvVenv()); err != nil {
		return nil, err
	}
	if b.site, err = sitePackages(b.Dir); err != nil {
		return nil, err
	}
	if !b.Requirements.Empty() {
		if err := b.tool(ctx, b.uvInstall()); err != nil {
			return nil, err
		}
	}
	if err := b.bytecode(ctx); err != nil {
		return nil, err
	}
	packages, err := installed(b.site)
	if err != nil {
		return nil, err
	}
	return &Result{Packages: packages, Warnings: b.warnings, Took: time.Since(begun)}, nil
}

// readsPylock are the versions of uv that install from a pylock.toml.
var readsPylock, _ = interpreter.ParseSpecifier(">=0.6.15")

// reads refuses what an older uv would take for something else.
func (i Installer) reads(r *requirement.Set) error {
	if r.Pylock != nil && !readsPylock.Allows(i.Version) {
		return fmt.Errorf("a pylock.toml needs uv 0.6.15 or later, and this node has %s: lock with uv, or as a requirements "+
			"file with hashes", i.Version)
	}
	return nil
}
