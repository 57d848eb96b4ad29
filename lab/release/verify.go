// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Verify builds the last commit again, in a clone at another path and by the commit's own targets. It returns an error
// that names each file that differs from dist.
func Verify(ctx context.Context, o Options) (err error) {
	plugins, err := o.resolve()
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "outrider-verify-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()

	clone := filepath.Join(scratch, "clone")
	// --shared: does not copy the objects
	if _, err := output(ctx, o.Root, nil, "git", "clone", "--quiet", "--shared", o.Root, clone); err != nil {
		return err
	}
	// -trimpath lets the go command reuse packages that another clone has compiled; the program that mage compiles needs a
	// separate cache, because its name depends only on the magefile's text
	env := []string{"GOFLAGS=-trimpath -buildvcs=false", "GOWORK=", "MAGEFILE_CACHE=" + filepath.Join(clone, "bin")}
	if _, err := output(ctx, clone, env, "go", "tool", "mage", "release:build", "-plugin="+o.Plugin); err != nil {
		return fmt.Errorf("failed to build the last commit in a clone: %w", err)
	}
	var errs []error
	for _, p := range plugins {
		dist := filepath.Join("dist", p.Name)
		cmd := exec.CommandContext(ctx, "diff", "-rq", filepath.Join(o.Root, dist), filepath.Join(clone, dist))
		if out, err := cmd.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("dist/%s differs from a build of the last commit: %w\n%s", p.Name, err, out))
		}
	}
	return errors.Join(errs...)
}

// BuildCommand is Build for a terminal: it prints the built files.
func BuildCommand(ctx context.Context, o Options) error {
	p := term.New(os.Stdout)
	end := p.Step("Building the release")
	results, err := Build(ctx, o)
	end(err, "")
	for _, r := range results {
		for _, name := range r.Files {
			fmt.Println(filepath.Join(r.Dir, name))
		}
	}
	return err
}

// VerifyCommand is Verify for a terminal.
func VerifyCommand(ctx context.Context, o Options) error {
	end := term.New(os.Stdout).Step("Building the last commit again")
	err := Verify(ctx, o)
	end(err, "all files are the same, byte for byte")
	return err
}
