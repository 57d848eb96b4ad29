// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/rootfs"
)

const monitorPage = "docs/guides/monitor.md"

// nodePages are read by the operator of a node, in this order: a page's commands need what those before it have done.
var nodePages = []string{"docs/start/node.md", "docs/guides/rollout.md", monitorPage, "docs/guides/troubleshoot.md"}

// TestNodePages_CommandsWork types the commands of the pages on nodes as an operator has them, each a bare Debian with
// Nomad. Before a command that shows what is wrong, that is made to go wrong: see incidents.
func TestNodePages_CommandsWork(t *testing.T) {
	testsupport.Long(t, "two releases are built, a bare Debian, and each fault of the pages is made")
	t.Parallel()
	nodes := map[string][]fence{}
	used := map[string]bool{}
	for _, page := range nodePages {
		for _, f := range readFences(t, page) {
			nodes[f.node] = append(nodes[f.node], f)
			for _, name := range f.incidents() {
				used[name] = true
			}
		}
	}
	test.Eq(t, slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(incidents)), test.Sprint("the pages' incidents"))
	must.MapNotContainsKey(t, nodes, "", must.Sprint("every block of these pages names its node"))
	if err := rootfs.Missing(); err != nil {
		t.Skip(err)
	}
	for name, blocks := range nodes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := operatorsNode(t)
			for _, f := range blocks {
				for _, name := range f.incidents() {
					out, err := r.Run(t.Context(), eventually+incidents[name])
					t.Logf("%s:\n%s", name, out)
					must.NoError(t, err, must.Sprint(name))
				}
				runFencesBy(t, []fence{f}, func(commands string) (string, error) { return r.Run(t.Context(), commands) })
			}
		})
	}
}

// incidents are the names of those that come before a block.
func (f fence) incidents() []string {
	if f.after == "" {
		return nil
	}
	return strings.Split(f.after, "; ")
}

// operatorsNode is a bare Debian with Nomad, which has a disk of its own for allocations, and in root's home what an
// operator downloads.
func operatorsNode(t *testing.T) *root {
	t.Helper()
	r := newRoot(t)
	t.Cleanup(func() { // before it is closed
		// a process that waits for a frozen disk can't be killed
		_, err := r.Run(context.Background(), "fsfreeze -u /opt/nomad/data/alloc 2>/dev/null || true")
		test.NoError(t, err)
		if t.Failed() {
			log, err := r.Run(context.Background(), "journalctl -u nomad | tail -n 200")
			t.Logf("the agent's log (%v):\n%s", err, log)
		}
	})
	rel := getReleases(t)
	for _, version := range []string{older, newer} {
		for _, pattern := range []string{"*.zip", "*.deb", "*.rpm"} {
			r.put(".", rel.file(t, version, "exec-lite", pattern))
		}
	}
	r.put(".", filepath.Join(rel.dir, older, "exec-lite", "SHA256SUMS"))
	for _, plugin := range []string{python, usbPlugin} {
		r.put(".", filepath.Join(rel.bin(older), filepath.Base(plugin)))
	}
	r.put(".", usbStick)
	disk := filepath.Join(r.Dir, "srv", "disk")
	must.NoError(t, os.WriteFile(disk, nil, 0o600))
	must.NoError(t, os.Truncate(disk, 8<<30))
	out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", disk).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	r.sh(prepareNode)
	return r
}
