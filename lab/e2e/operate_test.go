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

// nodePages are the pages for a node's operator. A page's commands rely on those of the pages before it.
var nodePages = []string{"docs/start/node.md", "docs/guides/rollout.md", monitorPage, "docs/guides/troubleshoot.md"}

// TestNodePages_CommandsWork runs the commands of the pages on an operator's nodes, each a bare Debian with Nomad.
// Before a command that diagnoses a fault, the fault is caused: see incidents.
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

// incidents returns the names of the incidents before a block.
func (f fence) incidents() []string {
	if f.after == "" {
		return nil
	}
	return strings.Split(f.after, "; ")
}

// operatorsNode returns a bare Debian with Nomad, with a separate disk for allocations, and with the files that an
// operator downloads in root's home.
func operatorsNode(t *testing.T) *root {
	t.Helper()
	r := newRoot(t)
	t.Cleanup(func() { // runs before the root is closed
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
