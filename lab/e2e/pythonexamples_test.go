// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const pythonExamples = "../../plugins/python/example"

// pythonExampleJobs has a check for each example job, by the name of its file.
var pythonExampleJobs = map[string]func(*testing.T, *alloc){
	"web":        webExample,
	"wheelhouse": endsWith("exit 0", ": built in ", `^Wed 21 Feb 2024 (.*\n){7}$`, `% lit  full moon\n`),
	"inline":     endsWith("exit 0", "", `^Today: `, ` says so, with ENVS/`),
	"crash":      endsWith("exit 1", "Python: ModuleNotFoundError: No module named 'requests' (app.py:12)"),
}

// endsWith returns a check of a job's outcome, an event, and its output by regular expressions.
func endsWith(outcome, event string, output ...string) func(*testing.T, *alloc) {
	return func(t *testing.T, a *alloc) {
		must.Eq(t, outcome, a.ended(t), must.Sprint(a.story()))
		test.NoError(t, a.tells(event))
		for _, want := range output {
			want = strings.ReplaceAll(want, "ENVS", regexp.QuoteMeta(a.n.cache("envs")))
			test.RegexMatch(t, regexp.MustCompile(want), a.output(t, "stdout"))
		}
	}
}

func TestPythonExamples_DoWhatTheyPromise(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(pythonExamples + "/*.nomad.hcl")
	must.NoError(t, err)
	test.SliceLen(t, len(pythonExampleJobs), files, test.Sprintf("the examples are %q", files))
	for name := range pythonExampleJobs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runPythonExample(t, pythonNode.get(t), name)
		})
	}
}

func runPythonExample(t *testing.T, n *node, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(pythonExamples, name+".nomad.hcl"))
	must.NoError(t, err)
	pythonExampleJobs[name](t, n.submitHCL(t, string(text), func(j *api.Job) {
		j.TaskGroups[0].Tasks[0].KillTimeout = new(20 * time.Second) // for a busy machine
	}))
}

func webExample(t *testing.T, a *alloc) {
	a.running(t)
	var page string
	testsupport.Within(t, time.Minute, func() error {
		s, _, err := a.n.Client().Services().Get("python-web", nil)
		if err != nil {
			return err
		}
		if len(s) != 1 {
			return fmt.Errorf("the job has %d services", len(s))
		}
		page, err = get(fmt.Sprintf("http://%s:%d/", s[0].Address, s[0].Port))
		return err
	})
	for _, want := range []string{"under Nomad</h1>", a.id, "python-web"} {
		test.StrContains(t, page, want, test.Sprint("the page has no"))
	}
	a.checked(t)
	a.stop(t)
	if out := a.output(t, "stdout"); a.outcome() != "exit 0" || !strings.HasSuffix(out, "stopping on SIGTERM\n") {
		t.Errorf("got %s, %q: %s", a.outcome(), out, a.story())
	}
}

// checked waits until a check of the allocation's services has succeeded.
func (a *alloc) checked(t *testing.T) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		checks, err := a.n.Client().Allocations().Checks(a.id, nil)
		if err != nil {
			return err
		}
		for _, c := range checks {
			if c.Status == "success" {
				return nil
			}
		}
		return fmt.Errorf("no check has succeeded: %+v", checks)
	})
}

func get(url string) (string, error) {
	c := http.Client{Timeout: 5 * time.Second}
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return string(b), err
}

// quote returns a Python string literal. s must not need escapes.
func quote(s string) string { return "'" + s + "'" }

// The agent has no privileges: tasks and builds run as its user.
func TestPython_RunsWithoutRoot(t *testing.T) {
	t.Parallel()
	o := nodeOptions{bare: true, shell: unprivileged, python: &pythonOptions{}}
	if os.Geteuid() != 0 {
		o.shell = ""
	}
	n := newNode(t, o)
	for name := range pythonExampleJobs {
		t.Run(name, func(t *testing.T) { runPythonExample(t, n, name) })
	}
	t.Run("many tasks, one build", func(t *testing.T) { oneBuildForMany(t, n, 5) })
}
