// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package gobuild runs go build.
package gobuild

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Build is one run of go build.
type Build struct {
	Dir  string
	Env  []string // in addition to the environment of this process
	Args []string // after "build"
}

// Run runs the build. Its error includes the compiler's messages. When ctx ends, the go command gets an interrupt, as
// with ^C, and ends together with its compilers.
func (b Build) Run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build"}, b.Args...)...)
	cmd.Dir = b.Dir
	cmd.Env = append(os.Environ(), b.Env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	messages, err := cmd.CombinedOutput()
	if err != nil {
		return errors.Join(err, errors.New(strings.TrimSpace(string(messages))))
	}
	return nil
}
