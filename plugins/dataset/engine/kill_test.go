// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// call describes a call of an operation, for a process that the test kills.
type call struct {
	Operation     string
	Program, Root string
	Name, To, Dir string
}

// stepVar names a variable that contains a call as JSON. If it is set, the test binary makes the call and exits.
const stepVar = "DATASET_CALL"

func init() {
	if os.Getenv(stepVar) != "" {
		runtime.LockOSThread() // makes the call on the main thread, the only one that strace traces
	}
}

func step() int {
	var c call
	err := json.Unmarshal([]byte(os.Getenv(stepVar)), &c)
	if err == nil {
		err = c.do(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (c call) do(ctx context.Context) error {
	var err error
	e := engine.Open(c.Program, c.Root)
	e.Locks = filepath.Join(filepath.Dir(c.Dir), "locks")
	spec := engine.Spec{Limits: engine.Limits{Data: 32 * mib}, Tags: engine.Tags{engine.Kind: "volume"}, Dir: c.Dir}
	switch c.Operation {
	case "create":
		_, err = e.Create(ctx, c.Name, spec)
	case "discard":
		err = e.Discard(ctx, c.Name, 0)
	case "destroy":
		err = e.Destroy(ctx, c.Name)
	case "snapshot":
		err = e.Snapshot(ctx, c.Name, "s2")
	case "rollback":
		err = e.Rollback(ctx, c.Name, "s1")
	case "clone":
		_, err = e.Clone(ctx, c.Name, "s1", c.To, spec)
	case "adopt":
		err = e.Adopt(ctx, c.Name, spec.Tags)
	}
	return err
}

// killed is an operation that is killed at each of its steps. Before the operation, the file in the dataset (call.Name)
// contains "two", and the file in the dataset's snapshot "s1" contains "one".
type killed struct {
	operation string
	done      error // error of a call after the operation has succeeded, or nil
	// check verifies the state after each call. done is true if the call was not killed. name, to and trash are what
	// the files in these datasets contain, or "" if a dataset does not exist.
	check func(t *testing.T, done bool, name, to, trash string)
}

var kills = []killed{
	{"create", engine.ErrExists, func(t *testing.T, done bool, name, _, _ string) {
		must.True(t, name == "empty" || !done && name == "")
	}},
	{"discard", engine.ErrNotFound, func(t *testing.T, done bool, name, _, trash string) {
		must.True(t, name+trash == "two", must.Sprint(name, trash)) // the dataset is in exactly one place
		must.True(t, !done || trash == "two")
	}},
	{"destroy", nil, func(t *testing.T, done bool, name, _, _ string) {
		must.True(t, name == "" || !done && name == "two")
	}},
	{"snapshot", engine.ErrExists, func(t *testing.T, _ bool, name, _, _ string) {
		must.Eq(t, "two", name)
	}},
	{"rollback", nil, func(t *testing.T, done bool, name, _, _ string) {
		must.True(t, name == "one" || !done && name == "two")
	}},
	{"clone", engine.ErrExists, func(t *testing.T, done bool, name, to, _ string) {
		must.Eq(t, "two", name)
		must.True(t, to == "one" || !done && to == "")
	}},
	{"adopt", nil, func(t *testing.T, done bool, name, _, _ string) {
		must.True(t, name == "two" || !done && name == "theirs", must.Sprint(name))
	}},
}

// changes are the system calls before which a process is killed: those that change files, and clone, which starts a
// program.
var changes = []string{"mkdirat", "symlinkat", "unlinkat", "renameat", "renameat2", "clone", "flock"}

// The test kills the process of an operation before each of its changes, and then runs the operation
// again.
func TestEngine_SurvivesKillsAtEachStep(t *testing.T) {
	testsupport.Long(t, "minutes on zfs-fuse")
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is missing: install the package strace")
	}
	self, err := os.Executable()
	must.NoError(t, err)
	eachKilled(t, func(t *testing.T, attempt func(interrupt func(call) (killed bool)) (killed bool)) {
		steps := 0
		for _, change := range changes {
			for at := 1; attempt(func(c call) bool {
				text, err := json.Marshal(c)
				must.NoError(t, err)
				cmd := exec.Command(strace, "-qq", "-o", "/dev/null", "-e", "trace="+change, "-e",
					fmt.Sprintf("inject=%s:signal=KILL:when=%d", change, at), self)
				cmd.Env = append(os.Environ(), stepVar+"="+string(text))
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
					return true
				}
				must.NoError(t, err, must.Sprint(string(out)))
				return false
			}); at++ {
				steps++
			}
		}
		t.Logf("killed at %d steps", steps)
		must.Greater(t, 1, steps)
	})
}

// The test kills the zfs program at each of its calls, before and after the program has done its work.
func TestEngine_SurvivesKillsAtEachCommand(t *testing.T) {
	testsupport.Long(t, "minutes on zfs-fuse")
	eachKilled(t, func(t *testing.T, attempt func(interrupt func(call) (killed bool)) (killed bool)) {
		steps := 0
		for _, when := range []string{"before", "after"} {
			for at := 1; attempt(func(c call) bool {
				dir := t.TempDir()
				script := fmt.Sprintf(`#!/bin/sh
echo >>%[1]s/calls
[ $(wc -l <%[1]s/calls) = %[2]d ] || exec %[3]s "$@"
touch %[1]s/killed
[ %[4]s = before ] || %[3]s "$@"
kill -9 $$
`, dir, at, c.Program, when)
				c.Program = filepath.Join(dir, filepath.Base(c.Program))
				must.NoError(t, os.WriteFile(c.Program, []byte(script), 0o700))
				err := c.do(t.Context())
				if testsupport.Exists(dir + "/killed") {
					return true
				}
				must.NoError(t, err)
				return false
			}); at++ {
				steps++
			}
		}
		t.Logf("killed at %d calls", steps)
	})
}

// eachKilled runs a test for each operation, on each implementation of ZFS. attempt prepares datasets, calls interrupt
// to start and kill the operation, and then calls the operation again.
func eachKilled(t *testing.T,
	run func(t *testing.T, attempt func(interrupt func(call) (killed bool)) (killed bool)),
) {
	t.Helper()
	eachColumn(t, func(t *testing.T, c column) {
		for _, k := range kills {
			t.Run(k.operation, func(t *testing.T) {
				run(t, func(interrupt func(call) bool) bool { return k.attempt(t, c, interrupt) })
				must.SliceEmpty(t, c.list(t))
			})
		}
	})
}

func (k killed) attempt(t *testing.T, c column, interrupt func(call) bool) (killed bool) {
	t.Helper()
	name, to := c.name(), c.name()
	todo := call{Operation: k.operation, Program: c.pool.Program, Root: c.pool.Root,
		Name: name, To: to, Dir: c.dir(name)}
	if k.operation == "clone" {
		todo.Dir = c.dir(to)
	}
	k.prepare(t, c, todo)

	killed = interrupt(todo)
	look := func(done bool) {
		t.Helper()
		trash := ""
		for _, n := range c.list(t) { // list the datasets before content mounts them
			if strings.HasPrefix(n, ".trash/") {
				must.Eq(t, "", trash)
				trash = n
			}
		}
		k.check(t, done, k.content(t, c, name), k.content(t, c, to), k.content(t, c, trash))
	}
	look(!killed)
	if err := todo.do(t.Context()); k.done == nil || !errors.Is(err, k.done) {
		must.NoError(t, err)
	}
	look(true)
	for all := c.list(t); len(all) > 0; all = c.list(t) {
		for _, n := range all {
			if err := c.Destroy(t.Context(), n); !errors.Is(err, engine.ErrHasClones) { // destroyed later, after its clone
				must.NoError(t, err)
			}
		}
	}
	return killed
}

func (k killed) prepare(t *testing.T, c column, todo call) {
	t.Helper()
	if k.operation == "create" {
		return
	}
	_, err := c.Create(t.Context(), todo.Name, engine.Spec{Limits: engine.Limits{Data: 32 * mib}, Dir: c.dir(todo.Name),
		Tags: engine.Tags{engine.Kind: "volume"}})
	must.NoError(t, err)
	path := c.mount(t, todo.Name)
	write(t, path, "file", "one")
	if k.operation != "snapshot" { // that operation makes the first snapshot itself
		must.NoError(t, c.Snapshot(t.Context(), todo.Name, "s1"))
	}
	write(t, path, "file", "two")
	switch k.operation {
	case "adopt": // without tags, the dataset looks like another tool's
		zfsfusetest.Unmount(t, path)
		run(t, c.pool.Program, "inherit", "outrider:dataset", c.pool.Root+"/"+todo.Name)
	}
}

// content returns what the file of a dataset contains: "empty" without a file, "theirs" if the dataset has no tags, and
// "" without a dataset. It verifies the limit and the tags.
func (k killed) content(t *testing.T, c column, name string) string {
	t.Helper()
	if name == "" {
		return ""
	}
	d, err := c.Get(t.Context(), name)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return ""
	case errors.Is(err, engine.ErrForeign):
		return "theirs"
	}
	must.NoError(t, err)
	must.Eq(t, 32*mib, d.Limits.Data)
	must.Eq(t, "volume", d.Tags[engine.Kind])
	content, err := os.ReadFile(filepath.Join(c.mount(t, name), "file"))
	if errors.Is(err, os.ErrNotExist) {
		return "empty"
	}
	must.NoError(t, err)
	return string(content)
}
