// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package e2e runs jobs on real Nomad agents, with the plugin binaries as they are released.
//
// Each agent is private (package agent). Each test ends with a check for leftovers: processes, threads, descriptors,
// cgroups, mounts, files.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/e2e/features"
	"github.com/outrider-dev/outrider/lab/internal/gobuild"
	"github.com/outrider-dev/outrider/lab/nomad"
)

var (
	scratch     string // readable by every user, with a short path: agents keep state and unix sockets below it
	nomadBinary string
	counter     string // see counter/main.go
	usbStick    string // a simulated USB stick

	execLite, python, usbPlugin, dataset, remote string // the plugins' binaries
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "systemctl" {
		if err := systemctl(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := shareMounts(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testsupport.RunInParallel(5) // the tests mostly wait
	code, err := 1, prepare()
	if err == nil {
		code = m.Run()
		err = clean()
	}
	err = errors.Join(err, os.RemoveAll(scratch))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// prepare builds the programs, and makes the directories.
func prepare() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	scratch, err = os.MkdirTemp("", "e")
	if err != nil {
		return err
	}
	tmp := filepath.Join(scratch, "tmp")
	err = errors.Join(os.Chmod(scratch, 0o755), os.Mkdir(tmp, 0o755), os.Chmod(tmp, 0o777|os.ModeSticky),
		os.Setenv("TMPDIR", tmp))
	if err != nil {
		return err
	}
	root, err := build.Root(".")
	if err != nil {
		return err
	}
	b := build.Builder{Root: root}
	paths, err := b.All(ctx, "exec-lite", "python", "usb", "dataset", "remote")
	if err != nil {
		return err
	}
	execLite, python, usbPlugin, dataset, remote = paths[0], paths[1], paths[2], paths[3], paths[4]
	usbStick, counter = filepath.Join(scratch, "usb-stick"), filepath.Join(scratch, "counter")
	nomadBinary = filepath.Join(scratch, "nomad")
	counting := gobuild.Build{Env: []string{"CGO_ENABLED=0"}, Args: []string{"-o", counter, "./counter"}}
	err = errors.Join(b.Stick(ctx, usbStick), counting.Run(ctx))
	if err != nil {
		return err
	}
	program, err := nomad.Binary(ctx, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
	if err != nil {
		return err
	}
	return errors.Join(os.Chmod(counter, 0o755), share(program, nomadBinary))
}

// clean ends the shared agents, and checks that no sockets are left in the temporary directory. The check covers
// plugins, executors and logmons that a test killed.
func clean() error {
	err := errors.Join(commonNode.end(), pythonNode.end(), confinedNode.end())
	sockets, _ := filepath.Glob(filepath.Join(scratch, "tmp", "plugin*"))
	if err == nil && len(sockets) > 0 {
		err = fmt.Errorf("agents left sockets: %q", sockets)
	}
	return err
}

// share links or copies a program to a path that every user can reach.
func share(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}

// sharedNode is an agent for tests that do not disturb each other. Each test stops its own jobs.
type sharedNode struct {
	name    string
	options nodeOptions
	start   sync.Once
	node    *node
	err     error
}

func (s *sharedNode) get(t testing.TB) *node {
	t.Helper()
	s.options.need(t)
	s.start.Do(func() { s.node, s.err = startNode(s.name, s.options) })
	must.NoError(t, s.err)
	return s.node
}

func (s *sharedNode) end() error {
	if s.node == nil {
		return nil
	}
	return s.node.end()
}

var (
	commonNode = &sharedNode{name: "common", options: nodeOptions{plugin: features.Plugin}}
	pythonNode = &sharedNode{name: "python", options: nodeOptions{python: &pythonOptions{}}}

	// confinedNode has every option that confines tasks.
	confinedNode = &sharedNode{name: "confined", options: nodeOptions{plugin: `
		unveil = "strict"
		unveil_by_task = true
		isolate = ["tmp", "ipc", "pid"]
		seccomp = "default"
		no_new_privs = true
		dynamic_users = true
		denied_host_uids = "0"
		denied_host_gids = "0"
	`}}
)
