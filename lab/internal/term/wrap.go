// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package term

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/mitchellh/go-wordwrap"
	"golang.org/x/term"
)

// Width is the maximum length of a line for users. It fits into common terminals.
const Width = 100

// Columns returns the maximum length of lines that are written to w: Width, or less on a narrower terminal.
func Columns(w io.Writer) int { return min(Terminal(w), Width) }

// Terminal returns the width of w for drawings, which may be wider than text: see Columns.
func Terminal(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return Width
}

// Paint adds the colour of an SGR code to text if w is a terminal, unless NO_COLOR is set (no-color.org).
func Paint(w io.Writer, code, text string) string {
	f, ok := w.(*os.File)
	if code == "" || !ok || os.Getenv("NO_COLOR") != "" || !term.IsTerminal(int(f.Fd())) {
		return text
	}
	return "\033[" + code + "m" + text + "\033[0m"
}

// Wrap breaks lines of s that are wider than width, between words. The next lines begin with the indentation of the
// broken line, and more. A word wider than width stays whole: it can be a path or an address to copy.
func Wrap(s string, width int, more string) string {
	var out []string
	for _, line := range strings.Split(s, "\n") {
		text := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(text)]
		if utf8.RuneCountInString(line) > width {
			room := max(width-len(indent)-len(more), 1)
			line = indent + strings.ReplaceAll(wordwrap.WrapString(text, uint(room)), "\n", "\n"+indent+more)
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// Cut shortens a line to width, and marks it with an ellipsis.
func Cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(width, 1)-1]) + "…"
}
