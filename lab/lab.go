// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package lab runs a Nomad agent with every plugin of this repository, for development. It implements the mage targets
// of the lab, such as lab:up.
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
	defaultPort = 4646           // the HTTP port that Nomad's tools use by default
	ownNode     = "outrider-lab" // name of the node of the lab's own agent
)

// Lab is the lab of one checkout: a Nomad agent with the checkout's plugins, and optional parts.
type Lab struct {
	root        string
	dir         string // the agent's directory
	runtime     agent.Runtime
	dataset     bool              // whether it has a pool, in poolDir
	remote      bool              // whether it has an SSH host, with files in hostDir
	host        sshd.Server       // the SSH server of that host
	port        int               // HTTP port; a free one if this is 0 or taken
	nodes       int               // number of nodes; see With
	only        map[string]string // configurations of the plugins to run, by name; nil: all plugins. See StartDemo
	steps       *term.Printer
	out         io.Writer
	errOut      io.Writer
	firstOutput time.Duration               // how long Run waits for a service's first output
	docker      func(context.Context) error // returns an error if no container can run; tests replace it
}

// New returns the lab of the checkout that contains the working directory. The environment may set LAB_RUNTIME (auto,
// host or container) and LAB_DIR, the parent of the lab's directory.
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
		l.dir, err = filepath.Abs(filepath.Join(dir, "outrider-lab")) // a subdirectory: lab:down deletes all its files
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// auto is the default runtime: a container if Docker can run one, otherwise the host.
const auto agent.Runtime = "auto"

// defaultDir returns the directory of a checkout's lab: in the checkout, or for root, in /var/lib. Root's tasks may run
// as any user, and every user must be able to enter the directory, which most home directories prevent. But only root
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

// mage is the mage command in messages. It needs no installed mage.
const mage = "go tool mage"

// open returns the agent of the running lab. If no agent runs, the error names the command that starts it.
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

// say prints a message, wrapped to the terminal's width.
func (l *Lab) say(format string, args ...any) {
	fmt.Fprintln(l.out, term.Wrap(fmt.Sprintf(format, args...), term.Columns(l.out), "  "))
}

// hint prints a mage command on its own line, unwrapped, so users can copy it.
func (l *Lab) hint(format string, args ...any) {
	fmt.Fprintf(l.out, "  %s %s\n", mage, fmt.Sprintf(format, args...))
}
