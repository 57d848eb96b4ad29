// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/creack/pty"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

const (
	key   = 35 * time.Millisecond  // for each letter of the command
	burst = 100 * time.Millisecond // output within this time is one change; each makes the picture larger
	line  = 300 * time.Millisecond // to read a line before the next change
	pause = time.Second            // the longest wait for a change
	rest  = 5 * time.Second        // for the last screen, before the picture starts again
)

// cast is the content of a terminal over time: an asciicast of version 2.
type cast struct {
	rows   uint16
	length time.Duration
	events []any
}

// show adds output, some time after the output before it.
func (c *cast) show(after time.Duration, text string) {
	c.length += after
	c.events = append(c.events, []any{c.length.Seconds(), "o", text})
}

// record runs a command on a terminal, under a prompt with its title. Waiting is cut, and reading gets time: the cast
// is not a measure of speed. The error is the command's.
func record(ctx context.Context, cmd *exec.Cmd, title string, rows uint16) (*cast, error) {
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: term.Width})
	if err != nil {
		return nil, fmt.Errorf("failed to start on a terminal: %w", err)
	}
	defer terminal.Close()
	defer context.AfterFunc(ctx, func() { terminal.Write([]byte{3}) })() // ^C, at which it cleans up

	const prompt = "\033[1;32m$\033[0m "
	c := &cast{rows: rows}
	c.show(0, prompt)
	for _, letter := range title {
		c.show(key, string(letter))
	}
	c.show(pause, "\r\n")
	home, _ := os.UserHomeDir()
	lines := 0
	begun, last := time.Now(), time.Now() // of this change, and of the one before
	var text strings.Builder
	change := func() {
		s := strings.ReplaceAll(text.String(), home+"/", "~/")
		text.Reset()
		if strings.HasPrefix(s, "\r\033[K") && !strings.Contains(s, "\n") {
			return // the same step, some seconds later
		}
		c.show(max(min(begun.Sub(last), pause), time.Duration(lines)*line), s)
		lines, last = strings.Count(s, "\n"), begun
	}
	in := bufio.NewReader(terminal)
	for {
		r, _, err := in.ReadRune()
		if text.Len() > 0 && (err != nil || time.Since(begun) > burst) {
			change()
		}
		if err != nil { // EIO: nobody has the other end any more
			break
		}
		if text.Len() == 0 {
			begun = time.Now()
		}
		text.WriteRune(r)
	}
	c.show(time.Duration(lines)*line, prompt)
	c.show(rest, "")
	return c, cmd.Wait()
}

// save writes the cast to a file.
func (c *cast) save(path string) error {
	var text strings.Builder
	out := json.NewEncoder(&text)
	const margin = 1 // letters of some fonts are wider than a column
	header := map[string]any{"version": 2, "width": term.Width + margin, "height": c.rows}
	for _, line := range append([]any{header}, c.events...) {
		if err := out.Encode(line); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}
