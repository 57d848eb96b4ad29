// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package forest shows processes as `ps --forest` does, where there may be no ps.
package forest

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Process is one line of it.
type Process struct {
	PID, PPID int
	RSS       int // KiB
	Args      string
}

// script prints pid, parent, resident KiB and arguments of every process, with a
// POSIX shell and /proc alone.
const script = `for d in /proc/[0-9]*; do
  read -r line <"$d/stat" || continue
  rest=${line##*) }; set -- $rest; ppid=$2
  rss=0; while read -r k v u; do [ "$k" = VmRSS: ] && rss=$v; done <"$d/status"
  args=$(tr '\000\n' '  ' <"$d/cmdline")
  echo "${d#/proc/} $ppid $rss $args"
done 2>/dev/null`

// Read lists all processes, by a function that runs a command where they are.
func Read(ctx context.Context, run func(ctx context.Context, argv ...string) (string, error)) ([]Process, error) {
	out, err := run(ctx, "sh", "-c", script)
	if err != nil {
		return nil, fmt.Errorf("failed to list processes: %w", err)
	}
	return parse(out), nil
}

func parse(out string) (all []Process) {
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if len(f) < 4 || f[3] == "" { // a kernel thread, or gone meanwhile
			continue
		}
		pid, err1 := strconv.Atoi(f[0])
		ppid, err2 := strconv.Atoi(f[1])
		rss, err3 := strconv.Atoi(f[2])
		if err1 == nil && err2 == nil && err3 == nil {
			all = append(all, Process{PID: pid, PPID: ppid, RSS: rss, Args: strings.TrimSpace(f[3])})
		}
	}
	slices.SortFunc(all, func(a, b Process) int { return a.PID - b.PID })
	return all
}

// Below returns a process and all below it.
func Below(all []Process, root int) (found []Process) {
	for _, p := range all {
		if p.PID == root {
			found = append(found, p)
		}
	}
	for _, p := range all {
		if p.PPID == root && p.PID != root {
			found = append(found, Below(all, p.PID)...)
		}
	}
	return found
}

// Role is what a process is for.
type Role string

// The roles.
const (
	Agent      Role = "agent"
	Helper     Role = "helper" // Nomad's own, for one task
	Plugin     Role = "plugin"
	Supervisor Role = "supervisor" // and its collector
	Task       Role = "task"
)

// roles are in the order of the legend.
var roles = []Role{Agent, Helper, Plugin, Supervisor, Task}

// colors are SGR codes.
var colors = map[Role]string{Agent: "34", Helper: "31", Plugin: "32", Supervisor: "36", Task: "33"}

// Role is found by the command line.
func (p Process) Role() Role {
	words := strings.Fields(p.Args)
	switch program := filepath.Base(words[0]); {
	case strings.HasPrefix(program, agent.DriverPrefix), strings.HasPrefix(program, agent.DevicePrefix):
		return Plugin
	case program == "outrider-supervisor":
		return Supervisor
	case strings.Contains(program, "nomad") && len(words) > 1 && words[1] != "agent":
		return Helper
	case strings.Contains(program, "nomad"):
		return Agent
	}
	return Task
}

func (p Process) color() string { return colors[p.Role()] }

// Print draws the processes with their parents above them; width cuts the lines.
func Print(w io.Writer, processes []Process, width int) {
	here := map[int]bool{}
	for _, p := range processes {
		here[p.PID] = true
	}
	children := map[int][]Process{}
	for _, p := range processes {
		parent := p.PPID
		if !here[parent] {
			parent = 0
		}
		children[parent] = append(children[parent], p)
	}
	fmt.Fprintf(w, "%7s %7s %8s  %s\n", "PID", "PPID", "RSS KiB", "COMMAND")
	var draw func(p Process, indent, branch string)
	draw = func(p Process, indent, branch string) {
		line := fmt.Sprintf("%7d %7d %8d  %s%s", p.PID, p.PPID, p.RSS, indent+branch, p.Args)
		fmt.Fprintln(w, term.Paint(w, p.color(), term.Cut(line, width)))
		switch branch {
		case ` \_ `:
			indent += "    "
		case ` |_ `:
			indent += " |  "
		}
		for i, c := range children[p.PID] {
			if i == len(children[p.PID])-1 {
				draw(c, indent, ` \_ `)
			} else {
				draw(c, indent, ` |_ `)
			}
		}
	}
	for _, p := range children[0] {
		draw(p, "", "")
	}
	plain, legend := "", ""
	for _, r := range roles {
		plain += " " + string(r)
		legend += " " + term.Paint(w, colors[r], string(r))
	}
	if legend != plain { // there are colours
		fmt.Fprintln(w, "  "+legend)
	}
}
