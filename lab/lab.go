// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package lab runs a Nomad agent for development, with every plugin of this repository. It implements
// `go tool mage lab:up` and its companions.
package lab

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

const (
	defaultPort = 4646           // Nomad's HTTP port, the default of every tool
	ownNode     = "outrider-lab" // the node of the lab's own agent
)

// Lab is the lab of one checkout.
type Lab struct {
	root        string
	dir         string // the agent's directory
	runtime     agent.Runtime
	dataset     bool              // has a pool, see poolDir
	remote      bool              // has a host, see hostDir
	host        sshd.Server       // if remote
	port        int               // 0: defaultPort, or a free one
	nodes       int               // see With
	only        map[string]string // plugins by name, with their configuration; nil: all. See StartDemo
	steps       *term.Printer
	out         io.Writer
	errOut      io.Writer
	firstOutput time.Duration               // how long to wait for the output of a silent service
	docker      func(context.Context) error // returns nil if a container can be started; for tests to replace
}

// New returns the lab of the checkout that the working directory is in. The environment may set LAB_RUNTIME (auto,
// host, container) and LAB_DIR, in which the lab creates its directory.
func New() (*Lab, error) {
	root, err := build.Root(".")
	if err != nil {
		return nil, err
	}
	l := &Lab{
		root: root, dir: defaultDir(root), runtime: agent.Runtime(cmp.Or(os.Getenv("LAB_RUNTIME"), string(auto))),
		steps: term.New(os.Stdout), out: os.Stdout, errOut: os.Stderr,
		port: defaultPort, firstOutput: 3 * time.Second, docker: agent.DockerAnswers,
	}
	if !slices.Contains([]agent.Runtime{auto, agent.Host, agent.Container}, l.runtime) {
		return nil, fmt.Errorf("unknown LAB_RUNTIME %q: want auto, host or container", l.runtime)
	}
	if dir := os.Getenv("LAB_DIR"); dir != "" {
		l.dir, err = filepath.Abs(filepath.Join(dir, "outrider-lab")) // lab:down deletes everything in it
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// auto is the default runtime: a container if Docker answers, otherwise the host.
const auto agent.Runtime = "auto"

// defaultDir returns the directory of a checkout's lab: in the checkout, or below /var/lib for root. Root's tasks may
// run as any user: every user must be able to reach the directory, which most home directories prevent, but only root
// may replace the files that a driver stores there.
func defaultDir(root string) string {
	if os.Geteuid() != 0 {
		return filepath.Join(root, ".lab")
	}
	return filepath.Join("/var/lib", fmt.Sprintf("outrider-lab-%.6x", sha256.Sum256([]byte(root))))
}

var (
	errDown  = errors.New("the lab is not up; start it with: " + mage + " lab:up")
	errEnded = errors.New("the lab's agent has ended; start it again with: " + mage + " lab:up")
)

// mage is the command that users type, as every page shows it.
const mage = "go tool mage"

// open returns the running lab's agent, or an error that says what to do.
func (l *Lab) open(ctx context.Context) (agent.Agent, error) {
	a, err := agent.Open(ctx, l.dir)
	if errors.Is(err, agent.ErrNone) {
		return nil, errDown
	}
	if err != nil {
		return nil, err
	}
	if a.Alive(ctx) != nil {
		return nil, errEnded
	}
	return a, nil
}

// say prints lines of a command's result, wrapped.
func (l *Lab) say(format string, args ...any) {
	fmt.Fprintln(l.out, term.Wrap(fmt.Sprintf(format, args...), term.Columns(l.out), "  "))
}

// hint prints a mage command on a separate line, unwrapped, so users can copy it.
func (l *Lab) hint(format string, args ...any) {
	fmt.Fprintf(l.out, "  %s %s\n", mage, fmt.Sprintf(format, args...))
}
