// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// install replaces the node's plugins by those of a version as an operator does, with the agent stopped, and waits
// until the supervisor is that version's too. Meanwhile is what happens while no agent runs.
func (n *node) install(t *testing.T, r *releases, version string, meanwhile func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	before := n.supervisor(t)
	replaced := strings.Count(n.log(), replacedSupervisor)
	must.NoError(t, n.Stop(ctx))
	for _, p := range n.Info().Plugins {
		must.NoError(t, n.ReplacePlugin(ctx, filepath.Join(r.bin(version), p)))
	}
	meanwhile()
	n.restart(t)
	testsupport.Within(t, time.Minute, func() error {
		if now := strings.Count(n.log(), replacedSupervisor); now != replaced+1 {
			return fmt.Errorf("the supervisor was replaced %d times by %s", now-replaced, version)
		}
		return nil
	})
	sameProcess(t, before, n.supervisor(t), version+": the supervisor")
}

// sameProcess allows for another parent.
func sameProcess(t *testing.T, before, now proc, what string) {
	t.Helper()
	test.True(t, before.alive(), test.Sprintf("%s has ended", what))
	test.Eq(t, before.pid, now.pid, test.Sprintf("%s is another process", what))
}

const replacedSupervisor = "replaced the supervisor of another version"

// TestUpgrade_AndRollbackKeepPythonTasks: their environments stay, too.
func TestUpgrade_AndRollbackKeepPythonTasks(t *testing.T) {
	testsupport.Long(t, "two releases are built, and a bare Debian")
	t.Parallel()
	r := getReleases(t)
	wheels := wheelhouse(t, wheel.Wheel{Name: "late", Version: "3"})
	n := newNode(t, nodeOptions{binaries: r.bin(older), python: &pythonOptions{}})
	program := func(until, end string) conf {
		return code(
			"import os, sys, time",
			"n = 0",
			fmt.Sprintf("while not os.path.exists(%q):", filepath.Join(n.dir, until)),
			"    print('line', n)",
			"    n += 1",
			"    time.sleep(0.02)",
			"import late # from the environment, which may be gone by now",
			"print('last', n)",
			end,
		).with(needs(wheels, "late"))
	}
	start := func(c conf) (*alloc, proc) {
		a := n.submit(t, py(t, c))
		a.running(t)
		return a, a.pid(t)
	}
	first, firstPID := start(program("first", "sys.exit(7)"))
	n.install(t, r, newer, func() {})
	second, secondPID := start(program("second", "raise ValueError('of the newer version')"))
	n.install(t, r, older, func() {})
	sameProcess(t, firstPID, first.pid(t), "the first task")
	sameProcess(t, secondPID, second.pid(t), "the second task")
	for a, want := range map[*alloc]string{first: "exit 7", second: "exit 1"} {
		a.held(t)
		touch(t, filepath.Join(n.dir, map[*alloc]string{first: "first", second: "second"}[a]))
		test.Eq(t, want, a.ended(t), test.Sprint(a.story()))
		_, ended, err := numbered(a.output(t, "stdout"))
		test.NoError(t, err)
		test.True(t, ended, test.Sprint(a.output(t, "stderr")))
	}
	test.NoError(t, second.tells("ValueError: of the newer version"))
}
