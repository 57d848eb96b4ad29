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

	"github.com/hashicorp/nomad/api"
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

// TestInstall_DatasetHasBothFaces is an operator's way with the plugin that is a host volume plugin, too. Its file is
// replaced while there is a volume, which is there after the agent's restart.
func TestInstall_DatasetHasBothFaces(t *testing.T) {
	testsupport.Long(t, "starts an agent of its own, and builds again")
	needRootAgent(t)
	t.Parallel()
	classes := pool(t, "fast")
	n := newPlainNode(t)
	next := filepath.Join(n.work, "next")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-X "+
		"github.com/outrider-dev/outrider/internal/core/plugin.version=9.9.9", "-o", next, ".")
	build.Dir, build.Env = "../../plugins/dataset", append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	file, link := filepath.Join(n.HostVolumePluginDir(), "dataset.hcl"), filepath.Join(n.HostVolumePluginDir(), "dataset")
	must.NoError(t, os.WriteFile(file, []byte(classes), 0o644))
	must.NoError(t, os.WriteFile(filepath.Join(n.etc, "dataset.hcl"), fmt.Appendf(nil,
		"plugin \"nomad-device-dataset\" {\n  config {\n    file = %q\n  }\n}\n", file), 0o644))
	before := n.files(t)

	said, err := n.install(t, dataset, "install")
	must.NoError(t, err)
	test.StrContains(t, said, "(host_volume_plugin_dir of "+n.Info().Dir+"/agent.hcl)\n")
	test.StrContains(t, said, "Wrote "+n.PluginDir()+"/nomad-device-dataset\nLinked "+link+" to it\n")
	n.again(t)
	n.hostVolumePlugin(t, printedVersion(t, dataset))
	like := &node{Agent: n.Agent}
	id := like.volume(t, "data")

	said, err = n.install(t, next, "install")
	must.NoError(t, err)
	test.StrContains(t, said, " by 9.9.9\n"+link+" is there already\n")
	n.again(t)
	n.hostVolumePlugin(t, "9.9.9")
	node := n.only(t)
	test.MapContainsKey(t, node.HostVolumes, "data")

	said, err = n.install(t, next, "uninstall")
	must.Error(t, err)
	test.StrContains(t, said,
		"there are volumes or slots (1), and an agent that starts without the plugin drops its volumes")
	_, err = os.Stat(link)
	must.NoError(t, err)
	_, _, err = n.Client().HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: id}, nil)
	must.NoError(t, err)
	said, err = n.install(t, next, "uninstall")
	must.NoError(t, err)
	test.StrContains(t, said, "Removed "+link+"\n")
	test.Eq(t, before, n.files(t))
	n.again(t)
	n.hostVolumePlugin(t, "")
}

// hostVolumePlugin waits until the node has the dataset plugin of a version, or none if it is empty.
func (n *plainNode) hostVolumePlugin(t *testing.T, want string) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		if got := n.only(t).Attributes["plugins.host_volume.dataset.version"]; got != want {
			return fmt.Errorf("the host volume plugin is of version %q, want %q", got, want)
		}
		return nil
	})
}

// only is the agent's node as the server knows it.
func (n *plainNode) only(t *testing.T) *api.Node {
	t.Helper()
	nodes, _, err := n.Client().Nodes().List(nil)
	must.NoError(t, err)
	must.SliceLen(t, 1, nodes)
	node, _, err := n.Client().Nodes().Info(nodes[0].ID, nil)
	must.NoError(t, err)
	return node
}
