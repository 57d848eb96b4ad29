// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// The other tests read /proc, so their agents are processes of the host. This one shows the same in the lab's
// container.
func TestAgent_RunsInContainer(t *testing.T) {
	testsupport.Long(t, "needs a container")
	if err := agent.DockerAnswers(t.Context()); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	dir, err := os.MkdirTemp(scratch, "c")
	must.NoError(t, err)
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
		left, err := a.Leftovers(ctx)
		must.NoError(t, err, must.Sprint("left"))
		test.SliceEmpty(t, left, test.Sprint("left"))
	}()
	inside := func(script string) string {
		t.Helper()
		out, err := a.Exec(ctx, "sh", "-c", script)
		must.NoError(t, err, must.Sprintf("%s: %v: %s", script, err, out))
		return strings.TrimSpace(out)
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
		fault.strike()
		testsupport.Within(t, time.Minute, func() error {
			out, err := counting.read("stdout")
			if err != nil {
				return err
			}
			if len(out) < before+50 {
				return fmt.Errorf("%s: no more output", fault.name)
			}
			_, _, err = numbered(out)
			return err
		})
		if _, st, err := counting.info(); err != nil || st.State != "running" || st.Restarts != 0 {
			t.Errorf("%s: the task is %s, %d restarts, %v", fault.name, st.State, st.Restarts, err)
		}
	}
	counting.held(t)
	code, out, _ := counting.session(t, true, nil, nil, "sh", "-c", "echo done; exit 3")
	must.Eq(t, 3, code, must.Sprint("exec"))
	test.Eq(t, "done\r\n", out, test.Sprint("exec"))
	inside("touch " + counting.dir() + "/main/local/go")
	if got := counting.ended(t); got != "exit 7" {
		t.Errorf("got %s: %s", got, counting.story())
	}
	_, ended, err := numbered(counting.output(t, "stdout"))
	must.NoError(t, err, must.Sprintf("output: %v, end %v", err, ended))
	test.True(t, ended, test.Sprintf("output: %v, end %v", err, ended))
	testsupport.Within(t, time.Minute, func() error { // Nomad reports the end before the driver destroys the task
		left := inside("ps -eo pid=,args= | grep -F 'sleep 0.05' | grep -v grep; find " + a.StateDir() +
			" -path '*/exec-lite/*/tasks/*' 2>/dev/null; test -d " + a.StateDir())
		if left != "" {
			return fmt.Errorf("left of the tasks:\n%s", left)
		}
		return nil
	})
}
