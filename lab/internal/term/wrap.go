// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package term

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Width is the maximum of every line for people, so that no usual terminal breaks it.
const Width = 100

// Columns returns the maximum of the lines that are written to w: Width, or less on a narrower terminal.
func Columns(w io.Writer) int { return min(Terminal(w), Width) }

// Terminal is Columns for what may be as wide as the terminal: a drawing, and no text.
func Terminal(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return Width
}

// Paint colours text for a terminal by an SGR code, unless NO_COLOR is set (no-color.org).
func Paint(w io.Writer, code, text string) string {
	f, ok := w.(*os.File)
	if code == "" || !ok || os.Getenv("NO_COLOR") != "" || !term.IsTerminal(int(f.Fd())) {
		return text
	}
	return "\033[" + code + "m" + text + "\033[0m"
}

// Wrap breaks lines of s that are wider than width between words. The rest of a line has the line's indentation and
// more. A wider word stays whole: it is a path or an address, to be copied.
func Wrap(s string, width int, more string) string {
	var out []string
	for _, line := range strings.Split(s, "\n") {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))] + more
		for utf8.RuneCountInString(line) > width {
			cut := lastBreak(line, width)
			if cut < 0 {
				break
			}
			out = append(out, strings.TrimRight(line[:cut], " "))
			line = indent + strings.TrimLeft(line[cut:], " ")
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// lastBreak returns the index of the last space of a line with at most width before it, or else of the first space, or
// -1 if only spaces follow.
func lastBreak(line string, width int) int {
	start := len(line) - len(strings.TrimLeft(line, " "))
	found, column := -1, utf8.RuneCountInString(line[:start])
	for i, r := range line[start:] {
		if r == ' ' && (column <= width || found < 0) {
			found = start + i
		}
		if column++; column > width && found >= 0 {
			break
		}
	}
	if found >= 0 && strings.TrimSpace(line[found:]) == "" {
		return -1
	}
	return found
}

// Cut shortens a line to width, and marks it with an ellipsis.
func Cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:max(width, 1)-1]) + "…"
}
