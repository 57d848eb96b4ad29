// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// Two agents share one environment. One of them removes each environment that no task uses, as an operator can.
func TestPythonCache_IsSharedByTwoAgents(t *testing.T) {
	testsupport.Long(t, "two agents")
	t.Parallel()
	first := newNode(t, nodeOptions{python: &pythonOptions{}})
	second := newNode(t, nodeOptions{python: &pythonOptions{cache: first.cache(), more: "cache_max_age = \"1us\"\n"}})
	wheels := wheelhouse(t, wheel.Wheel{Name: "early", Version: "1",
		Files: map[string]string{"late.py": "VERSION = 'in time'\n"}})
	dir := mkdir(t)
	submit := func(n *node, trigger string) *alloc {
		return n.submit(t, py(t, code(
			"import early, os, sys, time",
			"print(sys.prefix, flush=True)",
			"while not os.path.exists("+quote(filepath.Join(dir, trigger))+"): time.sleep(0.05)",
			"import late",
			"print(late.VERSION)",
		).with(needs(wheels, "early"))))
	}
	one, two := submit(first, "one"), submit(second, "two")
	one.running(t)
	two.running(t)
	one.says(t, "stdout", "\n")
	env := strings.TrimSpace(one.output(t, "stdout"))
	builds := 0
	for _, a := range []*alloc{one, two} {
		testsupport.Within(t, time.Minute, func() error {
			story := a.story()
			if !strings.Contains(story, ": built in ") && !strings.Contains(story, ": cache hit") {
				return fmt.Errorf("no event of the environment: %s", story)
			}
			return nil
		})
		builds += strings.Count(a.story(), ": built in ")
	}
	test.Eq(t, 1, builds)

	touch(t, filepath.Join(dir, "two"))
	two.ends(t, "exit 0", env+"\nin time\n")
	for _, n := range []*node{first, second} { // each next plugin cleans up the cache
		old := n.plugin(t)
		old.end(t)
		n.nextPlugin(t, old)
	}
	test.SliceEmpty(t, second.prune(t, first.cache()))
	test.Eq(t, []string{filepath.Base(env)}, first.cached("envs"))
	touch(t, filepath.Join(dir, "one"))
	one.ends(t, "exit 0", env+"\nin time\n")
	one.stop(t)
	testsupport.Within(t, 2*time.Minute, func() error {
		second.prune(t, first.cache())
		if left := first.cached("envs"); len(left) > 0 {
			return fmt.Errorf("%q are left without a task", left)
		}
		return nil
	})
}

// prune runs the plugin's command that removes unused environments from a cache, and returns the removed ones.
func (n *node) prune(t *testing.T, cache string) (removed []any) {
	t.Helper()
	binary, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", n.plugin(t).pid))
	must.NoError(t, err)
	out, err := exec.Command(binary, "cache", "prune", "-json", "-dir", cache).Output()
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(out, &removed))
	return removed
}
