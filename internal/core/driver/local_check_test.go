// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// manyArguments returns a driver that adds as many arguments as the job's variable ARGUMENTS specifies.
func manyArguments() testInstance {
	w := testInstance{}
	w.command = func(ctx context.Context, r testRequest) (*task.Command, error) {
		cmd, err := program(r)
		var n int
		if _, serr := fmt.Sscan(r.Task.Env["ARGUMENTS"], &n); serr == nil {
			cmd.Args = append(cmd.Args, slices.Repeat([]string{"x"}, n)...)
		}
		return cmd, err
	}
	return w
}

func variables(n, size int) map[string]string {
	env := map[string]string{}
	for i := range n {
		env[fmt.Sprintf("V%d", i)] = strings.Repeat("x", size)
	}
	return env
}

func TestCheckCommand_RefusesTooLargeCommands(t *testing.T) {
	a := startInstance(t, manyArguments(), nil)
	long := strings.Repeat("n", 200<<10)
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"a million arguments":          {map[string]string{"ARGUMENTS": "1000000"}, "are 9 MiB together"},
		"10 MB in one variable":        {map[string]string{"BIG": strings.Repeat("x", 10<<20)}, "are 10 MiB together"},
		"10 MB in many variables":      {variables(100, 100<<10), "are 9 MiB together"},
		"10 MB in very many variables": {variables(400_000, 16), "are 12 MiB together"},
		"a variable with a long name":  {map[string]string{long: "x"}, "too long for the kernel"},
	} {
		cfg := a.shell("exit 0", "", func(cfg *drivers.TaskConfig) {
			for k, v := range c.env {
				cfg.Env[k] = v
			}
		})
		_, _, err := a.driver.StartTask(cfg) // not through the agent, which limits messages to 4 MiB
		if err == nil {
			t.Errorf("%s: it started", name)
			a.destroy(cfg.ID)
			continue
		}
		must.StrContains(t, err.Error(), c.want,
			must.Sprintf("%s: got %.400q, want %q in it", name, err, c.want))
		must.StrNotContains(t, err.Error(), "\n",
			must.Sprintf("%s: got %.400q, want %q in it", name, err, c.want))
		test.False(t, len(err.Error()) > 300, test.Sprintf("%s: got %.400q, want %q in it", name, err, c.want))
	}
	left, _ := filepath.Glob(filepath.Join(a.state, "*/*/tasks/*"))
	test.SliceEmpty(t, left, test.Sprint("left behind"))
}

func TestRecoverTask_WorksWithALargeEnvironment(t *testing.T) {
	a := startInstance(t, manyArguments(), nil)
	// a handle is JSON, in which "<" takes six bytes
	cfg := a.shell("exec sleep 1000", "", func(cfg *drivers.TaskConfig) {
		for i := range 15 {
			cfg.Env[fmt.Sprintf("V%d", i)] = strings.Repeat("<", 100<<10)
		}
	})
	th := wire(t, a.run(cfg))
	n := len(th.DriverState)
	test.False(t, n > 2<<20, test.Sprintf("the handle's state is %d KiB", n>>10))
	stores, _ := filepath.Glob(filepath.Join(a.state, "*", "*", "tasks", "*", "task.json"))
	a.stopDriver()
	for _, file := range stores {
		must.NoError(t, os.Remove(file)) // only the handle is left
	}
	a.startDriver(nil)
	must.NoError(t, a.RecoverTask(th))
	st, err := a.InspectTask(cfg.ID)
	must.NoError(t, err, must.Sprintf("got %+v", st))
	test.Eq(t, drivers.TaskStateRunning, st.State, test.Sprintf("got %+v", st))
	a.destroy(cfg.ID)
}
