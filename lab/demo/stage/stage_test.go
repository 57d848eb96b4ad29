// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package stage

import (
	"bufio"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
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
