// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package vm_test has tests that need a separate kernel (package vm): with cgroup v2 without v1, or with a reboot.
package vm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/nomad"
	"github.com/outrider-dev/outrider/lab/vm"
)

// host is a machine that a test can boot more than once: one VM at a time, always with the same disk.
type host struct {
	t   *testing.T
	ctl string // vmctl, which controls the agent in the VM
	o   vm.Options
	vm  *vm.VM
}

const agentDir = vm.DiskMount + "/agent"

func newHost(t *testing.T) *host {
	t.Helper()
	ctl, err := vm.Build(t.Context(), "vmctl")
	must.NoError(t, err)
	h := &host{t: t, ctl: ctl}
	h.o = vm.Options{Memory: 3072, Disk: filepath.Join(t.TempDir(), "disk"), Progress: t.Logf}
	return h
}

// boot starts the VM. The host must be off.
func (h *host) boot() {
	h.t.Helper()
	begin := time.Now()
	h.vm = vm.New(h.t, h.o)
	h.t.Logf("booted in %.1f s", time.Since(begin).Seconds())
}

// cutPower kills the VM. It runs sync first, since a recent write might not be on the disk yet.
func (h *host) cutPower() {
	h.t.Helper()
	h.run(nil, "sync")
	h.vm.Kill()
}

// run runs a command in the VM and returns its output.
func (h *host) run(stdin []byte, args ...string) string {
	h.t.Helper()
	var out, errOut bytes.Buffer
	c := vm.Cmd{Args: args, Stdout: &out, Stderr: &errOut}
	if stdin != nil {
		c.Stdin = bytes.NewReader(stdin)
	}
	if err := h.vm.Run(h.t.Context(), c); err != nil {
		h.t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errOut.String())
	}
	return strings.TrimSpace(out.String())
}

// client returns a client of the agent in the VM, whose address vmctl has printed.
func (h *host) client(address string) *api.Client {
	h.t.Helper()
	machine := h.vm
	dial := func(ctx context.Context, _, address string) (net.Conn, error) { return machine.Dial(ctx, address) }
	c, err := api.NewClient(&api.Config{Address: address, Region: "global",
		HttpClient: &http.Client{Transport: &http.Transport{DialContext: dial}}})
	must.NoError(h.t, err)
	return c
}

// runAgent starts a new agent with its data on the disk. plugins configures plugins of this repository, by name.
func (h *host) runAgent(plugins map[string]agent.Plugin) *api.Client {
	h.t.Helper()
	names := slices.Sorted(maps.Keys(plugins))
	root, err := build.Root(".")
	must.NoError(h.t, err)
	paths, err := build.Builder{Root: root}.All(h.t.Context(), names...)
	must.NoError(h.t, err)
	program, err := nomad.Binary(h.t.Context(), h.t.Logf)
	must.NoError(h.t, err)
	var configured []agent.Plugin
	for i, name := range names {
		plugin := plugins[name]
		plugin.Binary = paths[i]
		configured = append(configured, plugin)
	}
	options, err := json.Marshal(map[string]any{"Binary": program, "Name": "rebooted", "Plugins": configured})
	must.NoError(h.t, err)
	return h.client(h.run(options, h.ctl, "run", agentDir))
}

func (h *host) startAgent() *api.Client {
	h.t.Helper()
	return h.client(h.run(nil, h.ctl, "start", agentDir))
}
