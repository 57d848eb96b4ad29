// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// unprivileged runs the agent as a process without privileges, with /sys/fs/cgroup read-only as in a container.
const unprivileged = `
mkdir -p "$DIR/alloc_mounts"
chown -R 65534:65534 "$DIR/alloc_mounts" "$DIR/data" "$DIR/state"
export HOME=/nonexistent
set -- unshare --mount --propagation private sh -c '
set -e
for m in $(cut -d" " -f5 /proc/self/mountinfo | grep ^/sys/fs/cgroup); do mount -o remount,bind,ro "$m"; done
exec setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all "$@"' sh "$@"`

// noCgroups runs the agent as on a machine without cgroups.
const noCgroups = `
set -- unshare --mount --propagation private sh -c 'umount -R -l /sys/fs/cgroup && exec "$@"' sh "$@"`

func TestAgent_RunsWithoutRoot(t *testing.T) {
	o := nodeOptions{bare: true, shell: unprivileged}
	if os.Geteuid() != 0 {
		o.shell = ""
	}
	testBareAgent(t, o, "the agent is not root")
}

func TestAgent_RunsWithoutCgroups(t *testing.T) {
	needRootAgent(t)
	testBareAgent(t, nodeOptions{bare: true, shell: noCgroups}, "cgroup")
}

// testBareAgent tests what works without cgroups. The driver is healthy, and its description contains missing.
func testBareAgent(t *testing.T, o nodeOptions, missing string) {
	t.Parallel()
	n := newNode(t, o)

	nodes, _, err := n.Client().Nodes().List(nil)
	must.NoError(t, err)
	d := nodes[0].Drivers["exec-lite"]
	t.Logf("exec-lite: %s", d.HealthDescription)
	if !d.Healthy || !strings.Contains(d.HealthDescription, missing) {
		t.Errorf("driver healthy %v: %q, want %q in it", d.Healthy, d.HealthDescription, missing)
	}

	for _, f := range generalFaults {
		t.Run(f.name, func(t *testing.T) {
			if f.loses != everybody {
				testsupport.Long(t, "the other faults without cgroups")
			}
			f.run(t, n)
		})
	}
}
