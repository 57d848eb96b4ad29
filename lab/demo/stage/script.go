// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package stage

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Act is one act of a script.
type Act struct {
	Say   string // its title
	Steps []Step
}

// Step is one step of an act: a note, a command, or what no command can do.
type Step struct {
	Note   string // "{took}" in it is the time since the last command that was shown
	Run    string // a command for the shell; it and its output are shown
	Quiet  bool   // neither is shown
	Expect string // the command is run again until a line has this text; new lines are shown up to that one
	Fails  bool   // the command has to fail
	Do     func(context.Context) error
}

// Script plays acts with the demo's agent.
type Script struct {
	Agent agent.Agent
	// Files are job files and programs. Commands run in a directory with them, which is on PATH with nomad in it.
	// The agent's plugins are on PATH, too.
	Files fs.FS
	// Vars are variables of job files, besides "plugins" and "state", the agent's directories.
	Vars map[string]string
	// Words are replaced in what is said, noted and run: {name} by its value.
	Words map[string]string

	shown map[string]int // lines of each command's output
	at    time.Time      // when the last command that was shown began
}

// Play plays the acts, see InOrder.
func (s *Script) Play(ctx context.Context, acts ...Act) error {
	if err := os.CopyFS(s.dir(), s.Files); err != nil {
		return fmt.Errorf("failed to write the demo's files: %w", err)
	}
	if err := os.Symlink(s.Agent.Info().Binary, filepath.Join(s.dir(), "nomad")); err != nil {
		return fmt.Errorf("failed to write the demo's files: %w", err)
	}
	s.shown = map[string]int{}
	var functions []func(context.Context) error
	for _, act := range acts {
		functions = append(functions, func(ctx context.Context) error {
			Say("%s", s.words(act.Say))
			for _, step := range act.Steps {
				if err := s.step(ctx, step); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return InOrder(ctx, functions...)
}

// dir has the demo's files, also in the agent's container.
func (s *Script) dir() string { return filepath.Join(s.Agent.Info().Dir, "demo") }

func (s *Script) words(text string) string {
	text = strings.ReplaceAll(text, "{took}", term.Short(time.Since(s.at)))
	for name, value := range s.Words {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

func (s *Script) step(ctx context.Context, step Step) error {
	step.Run = s.words(step.Run)
	if step.Note != "" {
		Note("%s", s.words(step.Note))
	}
	if step.Do != nil {
		return step.Do(ctx)
	}
	if step.Run == "" {
		return nil
	}
	if !step.Quiet {
		s.at = time.Now()
		if step.Expect == "" || s.shown[step.Run] == 0 {
			Note("$ %s", step.Run)
		}
	}
	if step.Expect != "" {
		return s.expect(ctx, step)
	}
	out, err := s.Shell(ctx, step.Run)
	if !step.Quiet {
		show(strings.Split(strings.TrimSpace(out), "\n"))
	}
	if step.Fails && err == nil {
		return fmt.Errorf("%s did not fail: %s", step.Run, out)
	}
	if step.Fails {
		return nil
	}
	return err
}

// expect runs a command until a new line of its output has the text.
func (s *Script) expect(ctx context.Context, step Step) error {
	out, what := "", fmt.Sprintf("%q", step.Expect)
	if step.Quiet {
		what = "Nomad"
	}
	err := Until(ctx, what, func() (bool, error) {
		out, _ = s.Shell(ctx, step.Run) // an error may pass
		lines := strings.Split(out, "\n")
		lines = lines[:len(lines)-1] // the last is not complete
		from := min(s.shown[step.Run], len(lines))
		if step.Quiet {
			from = 0
		}
		lines, found := upTo(lines[from:], step.Expect)
		if !step.Quiet {
			show(lines)
			s.shown[step.Run] = from + len(lines)
		}
		return found, nil
	})
	if err != nil {
		return fmt.Errorf("%w; %s printed: %s", err, step.Run, out)
	}
	return nil
}

// Now begins the time of notes.
func (s *Script) Now() Step {
	return Step{Do: func(context.Context) error {
		s.at = time.Now()
		return nil
	}}
}

// upTo returns the lines up to the first that has the text.
func upTo(lines []string, text string) (some []string, found bool) {
	for i, line := range lines {
		if strings.Contains(line, text) {
			return lines[:i+1], true
		}
	}
	return lines, false
}

// Skip counts the output that a command has by now as shown.
func (s *Script) Skip(command string) Step {
	return Step{Do: func(ctx context.Context) error {
		out, err := s.Shell(ctx, command)
		s.shown[command] = strings.Count(out, "\n")
		return err
	}}
}

func show(lines []string) {
	for _, line := range lines {
		switch {
		case strings.Contains(strings.TrimSpace(line), "  "): // of a table
			fmt.Println("     | " + line)
		case line != "":
			Note("  | %s", line)
		}
	}
}

// Shell runs a command where the agent's tasks run, and returns its output.
func (s *Script) Shell(ctx context.Context, command string) (string, error) {
	argv := []string{"env", "NOMAD_ADDR=" + s.Agent.Address(), "NOMAD_CLI_SHOW_HINTS=false",
		"HOST_VOLUME_PLUGINS=" + s.Agent.HostVolumePluginDir(),
		"NOMAD_VAR_plugins=" + s.Agent.PluginDir(), "NOMAD_VAR_state=" + s.Agent.StateDir()}
	for name, value := range s.Vars {
		argv = append(argv, "NOMAD_VAR_"+name+"="+value)
	}
	argv = append(argv, "sh", "-c", `cd "$0" && PATH=$0:$NOMAD_VAR_plugins:$PATH && eval "$1"`, s.dir(),
		command)
	out, err := s.Agent.Exec(ctx, argv...)
	if err != nil {
		return out, fmt.Errorf("failed to run %s: %w: %s", command, err, out)
	}
	return out, nil
}
