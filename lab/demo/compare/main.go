// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command compare (go tool mage demo:compare) runs the same tasks with raw_exec and with exec-lite in its own Nomad
// agent, and shows each second the resources that the drivers' helper processes use. Keys add tasks and kill helpers.
// Without a terminal, it prints one table after ten seconds. At the end it removes the agent.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	xterm "golang.org/x/term"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/stage"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/internal/usage"
)

const more = 10 // number of tasks that each driver has at first, and that the key a adds

func main() {
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`},
		OnHost:  true, // measure reads /proc of this machine
		Play: func(ctx context.Context, a agent.Agent) error {
			return (&compare{agent: a, sides: []*side{{driver: "raw_exec"}, {driver: "exec-lite"}}}).play(ctx)
		},
	}.Main()
}

type compare struct {
	agent   agent.Agent
	sides   []*side
	count   int // number of tasks of each driver
	message string
}

// side is one of the compared drivers, with its last measurement.
type side struct {
	driver  string
	asked   time.Time // when the last tasks were submitted
	took    time.Duration
	states  []string // the allocations' client statuses
	helpers []usage.Process
	memory  float64   // PSS of all helpers in bytes
	at      time.Time // when the helpers were measured
	cpu     float64   // percent of one core, on average since the previous measurement
}

func (c *compare) play(ctx context.Context) error {
	var keys <-chan byte     // nil if there is no terminal
	var end <-chan time.Time // nil if there is a terminal
	tty := xterm.IsTerminal(int(os.Stdin.Fd())) && xterm.IsTerminal(int(os.Stdout.Fd()))
	if tty {
		pressed, restore, err := stage.Keys(os.Stdin, quits)
		if err != nil {
			return err
		}
		defer func() { _ = restore() }()
		keys = pressed
	} else {
		end = time.After(10 * time.Second)
	}
	if err := c.add(); err != nil {
		return err
	}
	for second := time.NewTicker(time.Second); ; {
		if err := c.measure(); err != nil {
			return err
		}
		frame := c.frame(term.Terminal(os.Stdout))
		if tty {
			fmt.Print("\033[H\033[2J" + strings.ReplaceAll(frame, "\n", "\r\n"))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			fmt.Print("\n" + frame)
			return nil
		case k := <-keys:
			if quits(k) {
				return nil
			}
			if err := c.key(k); err != nil {
				return err
			}
		case <-second.C:
		}
	}
}

// quits reports whether k ends the demo: q, ^C (no signal in raw mode), or 0, which the closed channel of keys returns.
func quits(k byte) bool { return k == 'q' || k == 3 || k == 0 }

// victims selects the process that a key kills: the side's first helper with text in its arguments.
var victims = map[byte]struct {
	side int
	text string
}{
	'e': {0, " executor "},
	's': {1, "outrider-supervisor supervise "},
	'p': {1, "nomad-driver-exec-lite"},
}

func (c *compare) key(k byte) error {
	if k == 'a' {
		return c.add()
	}
	victim := victims[k]
	s := c.sides[victim.side]
	for _, p := range s.helpers {
		if victim.text == "" || !strings.Contains(strings.Join(p.Args, " "), victim.text) {
			continue
		}
		c.message = fmt.Sprintf("kill -9 %d (%s of %s)", p.PID, strings.TrimSpace(victim.text), s.driver)
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && err != syscall.ESRCH { //nolint:errorlint // an Errno
			return fmt.Errorf("failed to kill %s: %w", victim.text, err)
		}
		return nil
	}
	return nil
}

//go:embed tasks.nomad.hcl
var job string

// add submits the job of each driver with more tasks than before.
func (c *compare) add() error {
	c.count += more
	for _, s := range c.sides {
		s.asked, s.took = time.Now(), 0
		variables := fmt.Sprintf("driver = %q\ncount = %d\n", s.driver, c.count)
		jobs := c.agent.Client().Jobs()
		parsed, err := jobs.ParseHCLOpts(&api.JobsParseRequest{JobHCL: job, Variables: variables, Canonicalize: true})
		if err == nil {
			_, _, err = jobs.Register(parsed, nil)
		}
		if err != nil {
			return fmt.Errorf("failed to submit job %s: %w", s.driver, err)
		}
	}
	return nil
}

// helps reports whether a process with these arguments is a helper of the driver. Only tasks of raw_exec have a logmon.
func helps(driver, args string) bool {
	program, rest, _ := strings.Cut(args, " ")
	if driver == "raw_exec" {
		return strings.HasPrefix(rest, "executor ") || rest == "logmon"
	}
	return program == "outrider-supervisor" || filepath.Base(program) == "nomad-driver-exec-lite"
}

// measure updates both sides: the states of tasks from Nomad, the memory and processor time of helpers from /proc.
func (c *compare) measure() error {
	ids, err := agent.Processes(c.agent.Info().Dir)
	if err != nil {
		return err
	}
	for _, s := range c.sides {
		if err := c.tasks(s); err != nil {
			return err
		}
		helpers, err := usage.Of(ids, func(_ int, args []string) bool { return helps(s.driver, strings.Join(args, " ")) })
		if err != nil {
			return fmt.Errorf("failed to measure the helpers of %s: %w", s.driver, err)
		}
		s.measured(helpers)
	}
	return nil
}

// measured stores a measurement of the helpers, and computes their processor usage since the previous one.
func (s *side) measured(helpers []usage.Process) {
	cpu, now := 0.0, time.Now()
	for _, p := range helpers {
		before := slices.IndexFunc(s.helpers, func(old usage.Process) bool { return old.PID == p.PID })
		if before >= 0 {
			cpu += p.CPU - s.helpers[before].CPU
		}
	}
	if !s.at.IsZero() {
		s.cpu = 100 * cpu / now.Sub(s.at).Seconds()
	}
	s.helpers, s.at = helpers, now
	s.memory, _ = usage.Total(helpers)
}

// tasks updates the states of a side's tasks, oldest first, and once all run, how long their start took.
func (c *compare) tasks(s *side) error {
	list, _, err := c.agent.Client().Jobs().Allocations(s.driver, false, nil)
	if err != nil {
		return fmt.Errorf("failed to list the tasks of %s: %w", s.driver, err)
	}
	slices.SortFunc(list, func(a, b *api.AllocationListStub) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	s.states = nil
	last := int64(0)
	for _, a := range list {
		s.states = append(s.states, a.ClientStatus)
		if t := a.TaskStates["task"]; t != nil && a.ClientStatus == api.AllocClientStatusRunning {
			last = max(last, t.StartedAt.UnixNano())
		}
	}
	if len(list) == c.count && !slices.Contains(s.states, api.AllocClientStatusPending) && s.took == 0 {
		s.took = max(time.Unix(0, last).Sub(s.asked), time.Millisecond)
	}
	return nil
}

// frame returns the last measurement as text, with the drivers side by side.
func (c *compare) frame(width int) string {
	column := max((min(width, 160)-4)/2, 30)
	var b strings.Builder
	row := func(cell func(s *side) string) {
		for _, s := range c.sides {
			text := cell(s)
			b.WriteString("  " + text + strings.Repeat(" ", max(column-len([]rune(text)), 0)))
		}
		b.WriteString("\n")
	}
	row(func(s *side) string { return s.driver })
	row(func(s *side) string {
		return fmt.Sprintf("helper memory  %9.1f MB (PSS)", s.memory/1e6)
	})
	row(func(s *side) string { return fmt.Sprintf("helpers        %9d processes", len(s.helpers)) })
	row(func(s *side) string { return fmt.Sprintf("helper CPU     %9.1f %% of a core", s.cpu) })
	row(func(s *side) string {
		if s.took == 0 {
			return "all started in         …"
		}
		return fmt.Sprintf("all started in %9.1f s", s.took.Seconds())
	})
	row(func(s *side) string {
		waits := func(state string) bool { return state != api.AllocClientStatusRunning }
		running := len(slices.DeleteFunc(slices.Clone(s.states), waits))
		return fmt.Sprintf("running tasks  %9d of %d", running, c.count)
	})
	for from := 0; from < c.count; from += column {
		row(func(s *side) string {
			dots := ""
			for _, state := range s.states[min(from, len(s.states)):min(from+column, len(s.states))] {
				switch state {
				case api.AllocClientStatusRunning:
					dots += "●"
				case api.AllocClientStatusPending:
					dots += "○"
				default:
					dots += "✗"
				}
			}
			return dots
		})
	}
	if c.message != "" {
		b.WriteString("\n  " + c.message + "\n")
	}
	keys := "  a: ten more tasks, e: kill an executor, s: kill the supervisor, p: kill the plugin, q: quit"
	b.WriteString("\n" + term.Wrap(keys, width, "  ") + "\n")
	paint := func(text, code string) []string { return []string{text, term.Paint(os.Stdout, code, text)} }
	return strings.NewReplacer(slices.Concat(paint("●", "32"), paint("✗", "31"), paint("raw_exec  ", "1;31"),
		paint("exec-lite  ", "1;32"))...).Replace(b.String())
}
