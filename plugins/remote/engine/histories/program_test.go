// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package histories

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// failures counts what a judge finds.
type failures struct {
	testing.TB
	n int
}

func (f *failures) Helper()               {}
func (f *failures) Errorf(string, ...any) { f.n++ }

func TestReadRuns_ShowsCopiesAndSecondRuns(t *testing.T) {
	for name, c := range map[string]struct {
		lines string
		want  int
	}{
		"none":                         {"", 0},
		"one after the other":          {"start a\nend a 143\nstart b\nend b 0\n", 0},
		"killed":                       {"start a\nstart b\nend b 0\n", 0},
		"after a failure":              {"start a\nend a 1\nstart b\n", 0},
		"after a success":              {"start a\nend a 0\nstart b\n", 1},
		"the lock is held":             {"start a\nstart b\ntwo b\n", 1},
		"the other ends late":          {"start a\nstart b\nend a 143\n", 1},
		"a copy of the second one":     {"start a\nend a 1\nstart b\nstart c\ntwo c\nend c 143\nend b 143\n", 1},
		"its rest has the lock":        {"start a\nend a 143\nstart b\ntwo b\n", 1},
		"a copy, and a run after both": {"start a\nstart b\ntwo b\nend a 143\nend b 143\nstart c\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.NoError(t, os.WriteFile(filepath.Join(dir, "job"), []byte(c.lines), 0o600))
			found := &failures{TB: t}
			r := &run{t: found, o: Options{Runs: func(job string) []Ran { return ReadRuns(t, dir, job) }}}
			r.judgeRuns(&job{name: "job", kind: endpoint.Batch})
			must.Eq(t, c.want, found.n)
		})
	}
}

// Two copies of a program that run at the same time are seen by its lock.
func TestProgram_ShowsTwoCopies(t *testing.T) {
	dir := t.TempDir()
	var copies []*exec.Cmd
	for range 2 {
		c := exec.CommandContext(t.Context(), "/bin/sh", "-c", Program(`flock -n "$DIR/$JOB.lock" sleep 1000`))
		c.Env = append(os.Environ(), "DIR="+dir, "JOB=job")
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		must.NoError(t, c.Start())
		copies = append(copies, c)
		testsupport.Eventually(t, "it has started", func() bool { return len(ReadRuns(t, dir, "job")) == len(copies) })
	}
	testsupport.Eventually(t, "the second one finds the lock", func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "job"))
		return strings.Contains(string(text), "two")
	})
	for _, c := range copies {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // with what has the lock
		_ = c.Wait()
	}
	found := &failures{TB: t}
	r := &run{t: found, o: Options{Runs: func(job string) []Ran { return ReadRuns(t, dir, job) }}}
	r.judgeRuns(&job{name: "job", kind: endpoint.Batch})
	must.Eq(t, 1, found.n)
}
