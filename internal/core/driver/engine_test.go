package driver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// ExampleEngine is the example's engine, which is in another package. Its tasks call
// Programs.
var ExampleEngine func() Engine

// withEngine is a driver with an engine of its own.
type withEngine struct {
	testInstance
	engine Engine
}

func (w withEngine) Engine() Engine { return w.engine }

// eachEngine runs a test with tasks that are processes of this host, and with tasks
// that are goroutines.
func eachEngine(t *testing.T, test func(t *testing.T, a *agent)) {
	t.Run("local", func(t *testing.T) { test(t, start(t, nil)) })
	t.Run("example", func(t *testing.T) { test(t, startInstance(t, testInstance{engine: ExampleEngine()}, nil)) })
}

// scripts are the programs for both engines as processes. Each prints a line when it is ready.
var scripts = map[string]string{
	"exit":  `echo r; exit $1`,
	"until": `echo r; while [ ! -e $1 ]; do sleep 0.01; done; exit $2`,
	"sleep": `trap "exit $1" INT; echo r; while :; do sleep 0.02; done`,
	"deaf":  `trap '' INT; echo r; while :; do sleep 0.02; done`,
	"trap":  `trap "exit $2" $1; echo r; while :; do sleep 0.02; done`,
}

// program is a task that runs a program of both engines, and is ready when it is started.
func (a *agent) program(name string, args ...string) *drivers.TaskConfig {
	a.t.Helper()
	path, list := name, args
	if a.instance.engine == nil {
		path, list = "/bin/sh", append([]string{"-c", scripts[name], name}, args...)
	}
	for i, arg := range list {
		list[i] = fmt.Sprintf("%q", arg)
	}
	return a.task(fmt.Sprintf("command = %q\nargs = [%s]", path, strings.Join(list, ", ")))
}

// ready waits until a program is.
func (a *agent) ready(cfg *drivers.TaskConfig) {
	a.t.Helper()
	if a.instance.engine == nil {
		eventually(a.t, "it is ready", func() bool { return strings.HasPrefix(a.output(cfg), "r\n") })
	}
}

// Programs are the programs for both engines as functions.
func Programs(ctx context.Context, name string, args []string, signals <-chan string) (code int) {
	code, _ = strconv.Atoi(args[len(args)-1])
	for name != "exit" {
		select {
		case <-ctx.Done():
			return 0
		case signal := <-signals:
			if name == "sleep" || name == "trap" && signal == "SIG"+args[0] {
				return code
			}
		case <-time.After(time.Millisecond):
			if name == "until" && isThere(args[0]) {
				return code
			}
		}
	}
	return code
}
