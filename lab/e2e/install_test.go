// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// install runs a command of a plugin's binary about this agent, which it finds by its process.
func (n *plainNode) install(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	pid, err := n.PID(t.Context())
	must.NoError(t, err)
	args = append(args, "-pid", strconv.Itoa(pid))
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	t.Logf("%s %q: %v\n%s", filepath.Base(program), args, err, out)
	return string(out), err
}

// again restarts the agent.
func (n *plainNode) again(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must.NoError(t, n.Stop(ctx))
	must.NoError(t, n.Start(ctx))
	_, err := agent.WaitHealthy(ctx, n.Agent)
	must.NoError(t, err)
}

// version waits until the node has exec-lite of a version, or no exec-lite if it is empty.
func (n *plainNode) version(t *testing.T, want string) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		nodes, _, err := n.Client().Nodes().List(nil)
		if err != nil || len(nodes) != 1 {
			return fmt.Errorf("the nodes are %v: %w", nodes, err)
		}
		node, _, err := n.Client().Nodes().Info(nodes[0].ID, nil)
		if err != nil {
			return err
		}
		driver := node.Drivers["exec-lite"]
		healthy := driver != nil && driver.Healthy
		if got := node.Attributes["driver.exec-lite.version"]; got != want || healthy != (want != "") {
			return fmt.Errorf("exec-lite is of version %q, healthy %v; want version %q", got, healthy, want)
		}
		return nil
	})
}

// printedVersion is what a plugin's binary says.
func printedVersion(t *testing.T, binary string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binary, "version").Output()
	must.NoError(t, err)
	return strings.Fields(string(out))[1]
}

// files are those that an installation may have touched.
func (n *plainNode) files(t *testing.T) (all []string) {
	t.Helper()
	for _, dir := range []string{n.PluginDir(), n.etc} {
		entries, err := os.ReadDir(dir)
		must.NoError(t, err)
		for _, e := range entries {
			all = append(all, e.Name())
		}
	}
	return all
}

// TestInstall_UpgradesUnderATaskAndLeavesNothing is an operator's way with an agent that had no
// plugin: from install over an upgrade to uninstall.
func TestInstall_UpgradesUnderATaskAndLeavesNothing(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	n := newPlainNode(t)
	first, next := filepath.Join(n.work, filepath.Base(execLite)), filepath.Join(n.work, "next")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags=embed_supervisor", "-ldflags=-X "+
		"github.com/outrider-dev/outrider/internal/core/plugin.version=9.9.9", "-o", next, ".")
	build.Dir, build.Env = "../../plugins/exec-lite", append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	before := n.files(t)

	said, err := n.install(t, first, "install")
	must.NoError(t, err)
	test.StrContains(t, said, "Plugin directory: "+n.PluginDir()+" (plugin_dir of "+n.Info().Dir+"/agent.hcl)")
	test.StrContains(t, said, "Wrote "+n.Info().Dir+"/extra.hcl/nomad-driver-exec-lite.hcl")
	test.StrContains(t, said, "restart the agent, process ")
	n.again(t)
	n.version(t, printedVersion(t, first))

	like := &node{Agent: n.Agent, driver: "exec-lite", dir: n.Info().Dir, state: "/run/outrider"}
	a := like.start(t, sh("echo begun; trap 'exit 7' TERM; while :; do sleep 0.1; done"))
	a.says(t, "stdout", "begun\n")
	task := a.pid(t)
	said, err = n.install(t, next, "install")
	must.NoError(t, err)
	test.StrContains(t, said, "nomad-driver-exec-lite: version ")
	test.StrContains(t, said, " by 9.9.9\n")
	n.again(t)
	n.version(t, "9.9.9")
	test.True(t, task.alive(), test.Sprint("the task did not survive the upgrade"))
	now := a.pid(t)
	test.Eq(t, task.pid, now.pid)

	said, err = n.install(t, next, "uninstall")
	test.Error(t, err)
	test.StrContains(t, said, "it has tasks on this node (1)")
	task.kill(t, 15)
	test.Eq(t, "exit 7", a.ended(t))
	a.stop(t)
	testsupport.Within(t, time.Minute, func() error {
		_, err := n.install(t, next, "uninstall")
		return err
	})
	test.Eq(t, before, n.files(t))
	n.again(t)
	n.version(t, "")
	testsupport.Within(t, time.Minute, func() error {
		if _, err := os.Stat(like.store()); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the state of tasks is left: %w", err)
		}
		return nil
	})
}
