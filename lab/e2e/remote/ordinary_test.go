// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// TestTask_IsLikeAnyOther does with tasks on a host and in an engine, which is also reached through the host, what
// Nomad does with those of its own node. Script checks are not among it: Nomad's own services have none, and there is
// no Consul.
func TestTask_IsLikeAnyOther(t *testing.T) {
	x := &table{classes: []class{token}, kinds: []string{"box"}, nodes: 1}
	x.start(t)
	t.Run("on", func(t *testing.T) { // ends when the two have
		for _, kind := range []string{"box", "engine", tunnel} {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				if kind != "box" && x.engine == nil {
					t.Skip("no Docker engine answers")
				}
				c := x.ordinary(t, kind)
				for _, part := range []struct {
					name string
					run  func(*testing.T)
				}{
					{"exec", c.execs}, {"terminal", c.terminal}, {"signal", c.signal}, {"templates", c.templates},
					{"statistics", c.statistics}, {"out of memory", c.outOfMemory},
				} {
					t.Run(part.name, part.run)
				}
				c.finish(t)
			})
		}
	})
	x.empty(t)
	x.ends(t)
}

// program prints that it got a signal, keeps the processor busy now and then, and with SIGUSR1 takes too much memory.
const program = `echo $$ >> %s/%s.0; trap 'echo signal' USR2; trap 'echo value $(cat $NOMAD_TASK_DIR/signal)' HUP
trap 'kill $p; exit' INT; trap 'x=$(head -c 200000000 /dev/zero | tr "\0" x)' USR1
(exec sleep %s0) & p=$!; echo ready; while kill -0 $p
do n=0; while [ $n -lt 2000 ]; do n=$((n + 1)); done; sleep 0.1; done`

// ordinary starts a task with a template for each change_mode, which reads a variable.
func (x *table) ordinary(t *testing.T, kind string) *cell {
	t.Helper()
	c := &cell{table: x, by: token, kind: kind, row: "ordinary", n: int(cellCount.Add(1)), job: "ordinary-" + kind}
	c.set(t, "one")
	shown := func(mode string) *api.Template {
		return &api.Template{
			EmbeddedTmpl: new(fmt.Sprintf(`{{ with nomadVar "nomad/jobs/%s" }}{{ .value }}{{ end }}`, c.job)),
			DestPath:     new("local/" + mode), ChangeMode: new(mode), Splay: new(time.Duration(0)),
			Wait: &api.WaitConfig{Min: new(100 * time.Millisecond), Max: new(time.Second)},
		}
	}
	c.spec = func(j *api.Job) {
		main := j.TaskGroups[0].Tasks[0]
		main.SetConfig("args", []string{"-c", fmt.Sprintf(program, c.runs, c.job, c.mark())}).
			SetConfig("resources", []map[string]any{{"memory": "32MiB"}})
		main.Templates = []*api.Template{shown("signal"), shown("script"), shown("noop")}
		main.Templates[0].ChangeSignal = new("SIGHUP")
		main.Templates[1].ChangeScript = &api.ChangeScript{Command: new("/bin/sh"), Timeout: new(time.Minute),
			Args: []string{"-c", `cat $NOMAD_TASK_DIR/script > ` + c.runs + "/" + c.job}, FailOnError: new(true)}
	}
	c.submit(t)
	c.started(t)
	must.NotEq(t, "", c.alloc)
	must.NoError(t, x.engine.know(c))
	c.prints(t, "ready\n")
	return c
}

// set changes the variable.
func (c *cell) set(t *testing.T, value string) {
	t.Helper()
	_, _, err := c.api().Variables().Update(&api.Variable{Path: "nomad/jobs/" + c.job,
		Items: api.VariableItems{"value": value}}, nil)
	must.NoError(t, err)
}

// allocation is the only one of the job.
func (c *cell) allocation() (*api.Allocation, error) {
	a, _, err := c.api().Allocations().Info(c.alloc, nil)
	return a, err
}

// prints waits until the output in Nomad's API has a text.
func (c *cell) prints(t *testing.T, text string) {
	t.Helper()
	c.within(t, "prints "+text, func() error {
		r, err := c.api().AllocFS().Cat(&api.Allocation{ID: c.alloc}, "alloc/logs/main.stdout.0", nil)
		if err != nil {
			return err
		}
		defer r.Close()
		out, err := io.ReadAll(r)
		if err == nil && !strings.Contains(string(out), text) {
			err = fmt.Errorf("it has printed %q", out)
		}
		return err
	})
}

// exec runs a script in the task.
func (c *cell) exec(t *testing.T, tty bool, stdin string, sizes <-chan api.TerminalSize, stdout io.Writer,
	script string) (code int, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, err := c.allocation()
	must.NoError(t, err)
	var said bytes.Buffer
	code, err = c.api().Allocations().Exec(ctx, a, "main", tty, []string{"/bin/sh", "-c", script},
		strings.NewReader(stdin), stdout, &said, sizes, nil)
	must.NoError(t, err, must.Sprint(c, ": ", script, ": ", said.String()))
	return code, said.String()
}

func (c *cell) execs(t *testing.T) {
	for _, row := range []struct {
		script, stdin  string
		tty            bool
		code           int
		stdout, stderr string
	}{
		{script: "echo out; echo err >&2; exit 42", code: 42, stdout: "out\n", stderr: "err\n"},
		{script: "cat; echo end", stdin: "one\ntwo\n", stdout: "one\ntwo\nend\n"},
		{script: "test -t 0 || test -t 1 || echo $NOMAD_TASK_NAME", stdout: "main\n"},
		{script: "test -t 0 && test -t 1 && test -t 2 && exit 43", tty: true, code: 43},
	} {
		var stdout bytes.Buffer
		code, stderr := c.exec(t, row.tty, row.stdin, nil, &stdout, row.script)
		test.Eq(t, row.code, code, test.Sprint(row.script))
		test.Eq(t, row.stdout, stdout.String(), test.Sprint(row.script))
		test.Eq(t, row.stderr, stderr, test.Sprint(row.script))
	}
}

// terminal has one size, and then another.
func (c *cell) terminal(t *testing.T) {
	sizes := make(chan api.TerminalSize, 1)
	sizes <- api.TerminalSize{Height: 33, Width: 77}
	var out watched
	out.seen = func(text string) {
		if strings.HasSuffix(text, "first\r\n") {
			sizes <- api.TerminalSize{Height: 44, Width: 88}
		}
	}
	code, _ := c.exec(t, true, "", sizes, &out, `is() { i=0; while [ $((i += 1)) -lt 200 ]; do
[ "$(stty size 2>/dev/null)" = "$1" ] && return; sleep 0.05; done; exit 1; }
is "33 77"; echo first; is "44 88"; echo second`)
	test.Eq(t, 0, code)
	test.Eq(t, "first\r\nsecond\r\n", out.String())
}

// watched tells what has been written so far, after each write.
type watched struct {
	bytes.Buffer
	seen func(string)
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	w.seen(w.String())
	return n, err
}

func (c *cell) signal(t *testing.T) {
	must.NoError(t, c.api().Allocations().Signal(&api.Allocation{ID: c.alloc}, nil, "main", "SIGUSR2"))
	c.prints(t, "signal\n")
}

// templates are rendered again, and the task has their content there when Nomad tells it.
func (c *cell) templates(t *testing.T) {
	c.set(t, "two")
	c.prints(t, "value two\n")
	c.within(t, "has its script run", func() error {
		b, err := os.ReadFile(c.runs + "/" + c.job)
		if err == nil && string(b) != "two" {
			err = fmt.Errorf("it has read %q", b)
		}
		return err
	})
	c.within(t, "has the file of which it is not told", func() error {
		var out bytes.Buffer
		c.exec(t, false, "", nil, &out, "cat $NOMAD_TASK_DIR/noop")
		if out.String() != "two" {
			return fmt.Errorf("it is %q", out.String())
		}
		return nil
	})
	c.untouched(t)
}

func (c *cell) statistics(t *testing.T) {
	c.within(t, "has statistics", func() error {
		all, err := c.api().Allocations().Stats(&api.Allocation{ID: c.alloc}, nil)
		if err != nil {
			return err
		}
		main := all.Tasks["main"]
		if main == nil || main.ResourceUsage == nil {
			return errors.New("it has none")
		}
		cpu, memory := main.ResourceUsage.CpuStats, main.ResourceUsage.MemoryStats
		if cpu.Percent <= 0 || cpu.Percent > 400 || memory.Usage < 100<<10 || memory.Usage > 32<<20 {
			return fmt.Errorf("it has %+v, %+v", *cpu, *memory)
		}
		return nil
	})
}

// outOfMemory ends the task.
func (c *cell) outOfMemory(t *testing.T) {
	n, _, err := c.api().Nodes().Info(c.node(0), nil)
	must.NoError(t, err)
	if why := n.Attributes["driver.remote.endpoint."+c.kind+".no_limits"]; why != "" {
		t.Skip("no limits: " + why)
	}
	must.NoError(t, c.api().Allocations().Signal(&api.Allocation{ID: c.alloc}, nil, "main", "SIGUSR1"))
	c.within(t, "is told as out of memory", func() error {
		a, err := c.allocation()
		if err != nil {
			return err
		}
		exited, said := false, false
		for _, e := range a.TaskStates["main"].Events {
			exited = exited || e.Details["oom_killed"] == "true" && e.Details["exit_code"] == "137"
			said = said || e.DisplayMessage == "OOM: killed at endpoint "+c.kind
		}
		if !exited || !said {
			return fmt.Errorf("by its exit: %v, by an event: %v", exited, said)
		}
		return nil
	})
}
