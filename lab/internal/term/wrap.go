// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package term

import (
	"strings"
	"unicode/utf8"
)

// Width is what every line for people keeps to, so that no usual terminal breaks it.
const Width = 100

// Wrap breaks the lines of s that are wider than width between words. It indents the rest of a
// line as the line, and by more. A word that is wider stays whole: it is a path or an address,
// to be copied.
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

// lastBreak is the last space of a line that leaves no more than width before it, or else the
// first one; -1 if only spaces follow.
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

// Cut shortens a line to width, and shows that it did.
func Cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width-1]) + "…"
}
