// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package stage

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	xterm "golang.org/x/term"
)

func TestNote_FitsTheTerminal(t *testing.T) {
	keyboard, screen, err := pty.Open()
	must.NoError(t, err)
	defer keyboard.Close()
	defer screen.Close()
	must.NoError(t, pty.Setsize(screen, &pty.Winsize{Rows: 24, Cols: 60}))
	stdout := os.Stdout
	os.Stdout = screen
	Note("%s", strings.Repeat("many words ", 20)+"end")
	os.Stdout = stdout
	lines := bufio.NewScanner(keyboard)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		test.LessEq(t, 60, utf8.RuneCountInString(line), test.Sprint(line))
		if strings.HasSuffix(line, "end") {
			return
		}
	}
	t.Fatal(lines.Err())
}

func TestInOrder_WaitsForKeysOnAStage(t *testing.T) {
	for name, tc := range map[string]struct {
		keys   string
		played []int
		err    error
	}{
		"next, after keys without a meaning": {"x\t \rn", []int{1, 2, 3}, nil},
		"again, also of an act that failed":  {" aa  ", []int{1, 2, 2, 2, 3}, nil},
		"quit":                               {" q", []int{1, 2}, errQuit},
		"^C":                                 {"\x03", []int{1}, errQuit},
	} {
		t.Run(name, func(t *testing.T) {
			keyboard, terminal, err := pty.Open()
			must.NoError(t, err)
			defer keyboard.Close()
			defer terminal.Close()
			_, err = xterm.MakeRaw(int(terminal.Fd())) // else the keys are lines before the first act ends
			must.NoError(t, err)
			stdin := os.Stdin
			os.Stdin, *keyed = terminal, true
			defer func() { os.Stdin, *keyed = stdin, false }()
			_, err = keyboard.WriteString(tc.keys)
			must.NoError(t, err)
			var played []int
			var acts []func(context.Context) error
			for n := 1; n <= 3; n++ {
				acts = append(acts, func(context.Context) error {
					played = append(played, n)
					if n == 2 {
						return errors.New("failed")
					}
					return nil
				})
			}
			test.ErrorIs(t, InOrder(t.Context(), acts...), tc.err)
			test.Eq(t, tc.played, played)
		})
	}
}
