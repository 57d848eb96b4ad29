// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package usbvm runs jobs with USB devices of a real kernel, in a VM (package vm): devices are plugged in, real drivers
// bind to them, tasks write to their nodes, and the tests read the bytes at the other end.
//
// Tests and agent run in the VM; only TestMain runs on the host, too. All tests share one agent.
package usbvm

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/nomad"
	"github.com/outrider-dev/outrider/lab/vm"
	"github.com/outrider-dev/outrider/lab/vm/gadget"
)

// These variables pass the paths of binaries to the VM. The host builds the binaries, because building in a VM is slow.
const (
	pluginsEnv = "USBVM_PLUGINS" // a directory
	nomadEnv   = "USBVM_NOMAD"
)

const ports = 11 // the VM's ports for gadgets

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		os.Exit(m.Run()) // all tests are long
	}
	if !vm.Inside() {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(vm.Main(m, vm.Options{Memory: 3072}))
	}
	code := 1
	if err := gadget.Load(ports); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	if started != nil {
		if code != 0 {
			started.tellLog()
		}
		if err := started.end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// prepare builds the binaries on the host, and sets pluginsEnv and nomadEnv.
func prepare() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	root, err := build.Root(".")
	if err != nil {
		return err
	}
	paths, err := build.Builder{Root: root}.All(ctx, "exec-lite", "usb")
	if err != nil {
		return err
	}
	os.Setenv(pluginsEnv, filepath.Dir(paths[0]))
	program, err := nomad.Binary(ctx, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
	if err != nil {
		return err
	}
	os.Setenv(nomadEnv, program)
	return nil
}

// config configures the usb plugin. Each test has its own device type.
const config = `
grace = "3s"

device "written" {
  id   = "1d6b:0103"
  user = "nobody"
}
device "key" {
  id    = "1d6b:0104"
  nodes = ["usb"]     # for libusb
  user  = "nobody"
}
device "swapped" {
  id   = "1d6b:0109"
  user = "nobody"
}
`

var (
	starting sync.Mutex
	started  *node
)

// shared returns the agent of all tests. Each test stops its own jobs.
func shared(t *testing.T) *node {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	if started != nil {
		return started
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("/tmp", "usbvm")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(dir, 0o755)) // tasks of other users need to reach their directory
	begin := time.Now()
	plugin := func(name, config string) agent.Plugin {
		return agent.Plugin{Binary: filepath.Join(os.Getenv(pluginsEnv), name), Config: config}
	}
	a, err := agent.Run(ctx, agent.Options{
		Runtime: agent.Host, Dir: dir, Binary: os.Getenv(nomadEnv), Name: "usbvm", Progress: t.Logf,
		Config: clientConfig(t),
		Plugins: []agent.Plugin{
			plugin("nomad-driver-exec-lite", `state_dir = "${state_dir}"`),
			plugin("nomad-device-usb", config),
		},
	})
	must.NoError(t, err)
	t.Logf("the agent was ready after %.1f s", time.Since(begin).Seconds())
	started = &node{Agent: a}
	return started
}
