package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// manyArguments is a driver with as many arguments as the job's variable says.
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

func TestNoFloodOfArgumentsReachesTheSupervisor(t *testing.T) {
	a := startInstance(t, manyArguments(), nil)
	long := strings.Repeat("n", 200<<10)
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"a million arguments":           {map[string]string{"ARGUMENTS": "1000000"}, "the 1000002 arguments and "},
		"10 MB in one variable":         {map[string]string{"BIG": strings.Repeat("x", 10<<20)}, "environment variable BIG is 10240 KiB long"},
		"10 MB in many variables":       {variables(100, 100<<10), " environment variables are 10"},
		"10 MB in very many variables":  {variables(400_000, 16), " environment variables are "},
		"a variable of too long a name": {map[string]string{long: "x"}, "environment variable " + long[:64] + " is 200 KiB long"},
	} {
		cfg := a.shell("exit 0", "", func(cfg *drivers.TaskConfig) {
			for k, v := range c.env {
				cfg.Env[k] = v
			}
		})
		_, _, err := a.driver.StartTask(cfg) // not over the harness's wire, which takes 4 MiB
		if err == nil {
			t.Errorf("%s: it started", name)
			a.destroy(cfg.ID)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
			t.Errorf("%s: got %.400q, want %q in it", name, err, c.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(a.state, "*/*/tasks/*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOnlyWhatTheKernelRefusesIsTooLong(t *testing.T) {
	page := os.Getpagesize()
	most := mostOfAll(nil)
	filled := func(total int) []string { // with the pointers and the ends of the strings
		args := []string{}
		for left := total - len("/bin/true") - 9; left > 9; {
			n := min(left, 64<<10)
			args, left = append(args, strings.Repeat("x", n-9)), left-n
		}
		return args
	}
	for name, c := range map[string]struct {
		args    []string
		refused bool
	}{
		"the longest":   {[]string{strings.Repeat("x", 32*page-1)}, false},
		"too long":      {[]string{strings.Repeat("x", 32*page)}, true},
		"the most":      {filled(most - 1024), false},
		"too much":      {filled(most + 1024), true},
		"many pointers": {slices.Repeat([]string{""}, most/9+1024), true},
	} {
		err := checkSize(&task.Command{Path: "/bin/true", Args: c.args})
		cmd := exec.Command("/bin/true", c.args...)
		cmd.Env = []string{}
		if kernel := cmd.Run(); errors.Is(kernel, unix.E2BIG) != c.refused || (err != nil) != c.refused {
			t.Errorf("%s: got %v, the kernel says %v", name, err, kernel)
		}
	}
	env := []string{"A=" + strings.Repeat("x", 100<<10), "B=" + strings.Repeat("x", 100<<10)}
	for stack, refused := range map[uint64]bool{1 << 20: false, 512 << 10: true, task.Unlimited: false} {
		limits := []task.Rlimit{{Resource: unix.RLIMIT_STACK, Soft: stack, Hard: task.Unlimited}}
		if err := checkSize(&task.Command{Path: "/bin/true", Env: env, Rlimits: limits}); (err != nil) != refused {
			t.Errorf("ulimit stack %d: got %v", stack, err)
		}
	}
}

func TestALargeEnvironmentDoesNotKeepATaskFromBeingRecovered(t *testing.T) {
	a := startInstance(t, manyArguments(), nil)
	// as JSON six times as long: what a handle is made of
	cfg := a.shell("exec sleep 1000", "", func(cfg *drivers.TaskConfig) {
		for i := range 15 {
			cfg.Env[fmt.Sprintf("V%d", i)] = strings.Repeat("<", 100<<10)
		}
	})
	th := wire(t, a.run(cfg))
	if n := len(th.DriverState); n > 2<<20 {
		t.Errorf("the handle's state is %d KiB", n>>10)
	}
	stores, _ := filepath.Glob(filepath.Join(a.state, "*", "*", "tasks", "*", "task.json"))
	a.stopDriver()
	for _, file := range stores {
		must(t, os.Remove(file)) // so that the handle is all there is
	}
	a.startDriver(nil)
	must(t, a.RecoverTask(th))
	if st, err := a.InspectTask(cfg.ID); err != nil || st.State != drivers.TaskStateRunning {
		t.Errorf("got %+v, %v", st, err)
	}
	a.destroy(cfg.ID)
}
