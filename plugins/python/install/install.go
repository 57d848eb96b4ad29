// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package install creates virtual environments with uv or pip. It runs them by their documented options in a sandbox:
// as a user without other rights on the node, with access to no host but the indexes of the request.
package install

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Installer is a program that installs packages. The zero value is none.
type Installer struct {
	Name    string // "uv" or "pip"
	Version string
	UV      string                  // the program, of uv
	Python  interpreter.Interpreter // of pip: the interpreter that runs it, unless the environment's own has one
	NoUV    error                   // of pip: why an existing uv is not used; nil if there is none, or pip was chosen
}

// Tool names the program that installs for an interpreter, with its version. pip is the interpreter's own if it has
// one. Otherwise it is that of another interpreter, which Tool names, too.
func (i Installer) Tool(python interpreter.Interpreter) string {
	switch {
	case i.Name == "pip" && python.Pip != nil:
		return "pip " + python.PipVersion
	case i.Name == "pip":
		return "pip " + i.Version + " of " + i.Python.Path
	}
	return i.Name + " " + i.Version
}

// Request describes an environment to create.
type Request struct {
	Python       interpreter.Interpreter
	Requirements *requirement.Set
	Sources      index.Sources // with absolute directories; URL is never empty unless Offline
	AllowedHosts []string      // besides those of Sources and of Requirements.URLs
	AllowSdists  bool

	// Dir is the empty directory in which to create the environment, Work one for temporary files, Downloads one for
	// files that later builds may use, or "". All of them belong to As.
	Dir, Work, Downloads string

	// Refresh asks the indexes again, even if Downloads has their pages.
	Refresh bool

	// As is the user that runs the installer, nil for this process's user.
	As *syscall.Credential

	// MaxSize bounds the environment, its temporary files and its downloads, in bytes; 0 is no limit.
	MaxSize int64

	// Progress is called with each line of the installer's output. Downloaded is called with the number of bytes that
	// came from a host, and with 0 for each request, by several goroutines. Both may be nil.
	Progress   func(string)                 `json:"-"`
	Downloaded func(host string, bytes int) `json:"-"`
}

// Result describes a new environment.
type Result struct {
	Packages []string // "requests 2.31.0", sorted
	Warnings []string // of the installer, for example about an extra that a package does not have
	Took     time.Duration
}

// Install creates the environment: virtual environment, packages, bytecode. The files belong to As. When ctx ends, or
// this process is killed, the installer and all processes that it started are killed. The error is an *Error if the
// installer failed.
func (i Installer) Install(ctx context.Context, r Request) (*Result, error) {
	begun := time.Now()
	b, err := i.begin(r, r.Dir, r.Work)
	if err != nil {
		return nil, err
	}
	defer b.end()
	if err := b.tool(ctx, b.venvArgs()); err != nil {
		return nil, err
	}
	before, err := b.snapshot()
	if err != nil {
		return nil, err
	}
	if b.site, err = sitePackages(b.Dir); err != nil {
		return nil, err
	}
	if !b.Requirements.Empty() {
		argv, err := b.installArgs()
		if err == nil {
			err = b.tool(ctx, argv)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := b.verify(before); err != nil {
		return nil, err
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

// give changes the owner of a directory to the builder.
func (r *Request) give(dir string) error {
	if r.As == nil {
		return nil
	}
	if err := os.Lchown(dir, int(r.As.Uid), int(r.As.Gid)); err != nil {
		return fmt.Errorf("failed to give a directory to the user that builds: %w", err)
	}
	return nil
}
