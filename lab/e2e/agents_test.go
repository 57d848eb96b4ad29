// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestAgents_ShareNothing(t *testing.T) {
	t.Parallel()
	state, err := os.MkdirTemp(scratch, "s")
	must.NoError(t, err)
	// with the same state_dir, as by default
	a, b := newNode(t, nodeOptions{state: state}), newNode(t, nodeOptions{state: state})
	must.NotEq(t, b.store(), a.store(), must.Sprint("they share a directory"))
	inA, inB := a.start(t, conf{"command": counter}), b.start(t, conf{"command": counter})
	superA, superB := a.supervisor(t), b.supervisor(t)
	must.NotEq(t, superB.pid, superA.pid, must.Sprint("they share a supervisor"))
	if os.Geteuid() == 0 && fmt.Sprint(a.leaves()) == fmt.Sprint(b.leaves()) {
		t.Errorf("they share a cgroup: %q", a.leaves())
	}
	for alloc, own := range map[*alloc]proc{inA: superA, inB: superB} {
		p := alloc.pid(t)
		test.Eq(t, own.pid, p.parent, test.Sprintf("task %d is not a child of its agent's supervisor", p.pid))
	}
	procA, procB := inA.pid(t), inB.pid(t)
	pluginB := b.plugin(t)

	superA.end(t)
	a.plugin(t).end(t)
	a.another(t, a.isSupervisor, superA)
	for name, p := range map[string]proc{"supervisor": superB, "plugin": pluginB, "task": procB,
		"task of the other": procA} {
		test.True(t, p.alive(), test.Sprintf("the %s did not survive the kills of the other agent's processes", name))
	}
	inA.stop(t)
	kill(t, a)
	before := len(inB.output(t, "stdout"))
	testsupport.Within(t, time.Minute, func() error {
		out := inB.output(t, "stdout")
		if _, _, err := numbered(out); err != nil {
			return err
		}
		if len(out) < before+500 {
			return errors.New("the other agent's task prints nothing")
		}
		return nil
	})
	p := b.supervisor(t)
	test.Eq(t, superB.pid, p.pid, test.Sprint("the other agent has another supervisor"))
	a.restart(t)
}

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
