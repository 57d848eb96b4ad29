// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package stage

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/creack/pty"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	xterm "golang.org/x/term"
)

func TestInOrder_PlaysActsByThePresentersKeys(t *testing.T) {
	for name, tc := range map[string]struct {
		keys   string
		played []string
		err    error
	}{
		"next, after keys without a meaning": {"x\t \rn", []string{"1", "2", "3"}, nil},
		"again, even after a failed act":     {" aa  ", []string{"1", "2", "2", "2", "3"}, nil},
		"quit":                               {" q", []string{"1", "2"}, errQuit},
		"^C":                                 {"\x03", []string{"1"}, errQuit},
	} {
		t.Run(name, func(t *testing.T) {
			keyboard, terminal, err := pty.Open()
			must.NoError(t, err)
			defer keyboard.Close()
			defer terminal.Close()
			_, err = xterm.MakeRaw(int(terminal.Fd())) // without raw mode, the terminal would wait for a newline
			must.NoError(t, err)
			stdin := os.Stdin
			os.Stdin, *keyed = terminal, true
			defer func() { os.Stdin, *keyed = stdin, false }()
			_, err = keyboard.WriteString(tc.keys)
			must.NoError(t, err)
			var played []string
			play := func(_ context.Context, act string) error {
				played = append(played, act)
				if act == "2" {
					return errors.New("failed")
				}
				return nil
			}
			test.ErrorIs(t, InOrder(t.Context(), []string{"1", "2", "3"}, play), tc.err)
			test.Eq(t, tc.played, played)
		})
	}
}
