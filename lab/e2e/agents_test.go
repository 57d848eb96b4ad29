// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

func TestAgents_ShareNothing(t *testing.T) {
	t.Parallel()
	state := mkdir(t) // both agents have the same state_dir, as by default
	a, b := newNode(t, nodeOptions{state: state}), newNode(t, nodeOptions{state: state})
	must.NotEq(t, b.store(), a.store(), must.Sprint("they share a state directory"))
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
	for name, p := range map[string]proc{"B's supervisor": superB, "B's plugin": pluginB, "B's task": procB,
		"A's task": procA} {
		test.True(t, p.alive(), test.Sprintf("%s did not survive the kills of A's supervisor and plugin", name))
	}
	inA.stop(t)
	kill(t, a)
	inB.printsOn(t, len(inB.output(t, "stdout")), 500)
	p := b.supervisor(t)
	test.Eq(t, superB.pid, p.pid, test.Sprint("B's supervisor was replaced"))
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

// TestAgent_RunsWithoutRoot runs an agent without privileges, which has no cgroups either.
func TestAgent_RunsWithoutRoot(t *testing.T) {
	t.Parallel()
	o := nodeOptions{bare: true, shell: unprivileged}
	if os.Geteuid() != 0 {
		o.shell = ""
	}
	n := newNode(t, o)

	info, err := nomadtest.Node(n.Client())
	must.NoError(t, err)
	d := info.Drivers["exec-lite"]
	test.True(t, d.Healthy, test.Sprint(d.HealthDescription))
	test.StrContains(t, d.HealthDescription, "the agent is not root")

	for _, f := range generalFaults {
		t.Run(f.name, func(t *testing.T) {
			if f.loses != everybody {
				testsupport.Long(t, "the other faults without cgroups")
			}
			f.run(t, n)
		})
	}
}

// TestAgent_RunsInContainer runs an agent in the lab's container. The other tests read /proc, so their agents are
// processes of the host.
func TestAgent_RunsInContainer(t *testing.T) {
	testsupport.Long(t, "needs a container")
	if err := agent.DockerAnswers(t.Context()); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	dir := mkdir(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	a, err := agent.Run(ctx, agent.Options{
		Runtime: agent.Container, Dir: dir, Binary: nomadBinary, Progress: t.Logf,
		Plugins: []agent.Plugin{{Binary: execLite, Config: `state_dir = "${state_dir}"`}},
	})
	must.NoError(t, err)
	n := &node{Agent: a, driver: "exec-lite", dir: dir}
	defer func() {
		if t.Failed() {
			n.tellLog(t)
		}
		test.NoError(t, a.Close(ctx))
		test.Error(t, exec.Command("docker", "inspect", a.Info().Container).Run(), test.Sprint("the container still exists"))
	}()
	inside := func(script string) string {
		t.Helper()
		out, err := exec.Command("docker", "exec", a.Info().Container, "sh", "-c", script).CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s: %s", script, out))
		return strings.TrimSpace(string(out))
	}

	counting := n.start(t, sh("i=0; while [ ! -e local/go ]; do echo line $i; i=$((i+1)); sleep 0.05; done; "+
		"echo last $i; exit 7"))
	for _, fault := range []struct {
		name   string
		strike func()
	}{
		{"supervisor killed", func() { inside("kill -9 $(pgrep -x outrider-superv)") }},
		{"plugin killed", func() { inside("kill -9 $(pgrep -x nomad-driver-ex)") }},
		{"agent killed", func() { kill(t, n); n.restart(t) }},
	} {
		before := len(counting.output(t, "stdout"))
		t.Log(fault.name)
		fault.strike()
		counting.printsOn(t, before, 50)
		if _, st, err := counting.info(); err != nil || st.State != "running" || st.Restarts != 0 {
			t.Errorf("%s: the task is %s, %d restarts, %v", fault.name, st.State, st.Restarts, err)
		}
	}
	counting.held(t)
	code, out, _ := counting.session(t, true, nil, nil, "sh", "-c", "echo done; exit 3")
	must.Eq(t, 3, code, must.Sprint("exec"))
	test.Eq(t, "done\r\n", out, test.Sprint("exec"))
	inside("touch " + counting.dir() + "/main/local/go")
	test.Eq(t, "exit 7", counting.ended(t), test.Sprint(counting.story()))
	_, ended, err := numbered(counting.output(t, "stdout"))
	must.NoError(t, err, must.Sprintf("output: %v, end %v", err, ended))
	test.True(t, ended, test.Sprintf("output: %v, end %v", err, ended))
	testsupport.Within(t, time.Minute, func() error { // Nomad reports the end before the driver destroys the task
		left := inside("ps -eo pid=,args= | grep -F 'sleep 0.05' | grep -v grep; find " + a.StateDir() +
			" -path '*/exec-lite/*/tasks/*' 2>/dev/null; test -d " + a.StateDir())
		if left != "" {
			return fmt.Errorf("leftovers of the tasks:\n%s", left)
		}
		return nil
	})
}
