package term

import (
	"strings"
	"unicode/utf8"
)

// Width is what every line for people keeps to, so that no usual terminal breaks it.
const Width = 100

// Wrap breaks the lines of s between words where they are wider than width, and indents what
// comes of a line as the line is, and by more. A word that is wider is left whole: it is a
// path or an address, to be copied.
func Wrap(s string, width int, more string) string {
	var out []string
	for _, line := range strings.Split(s, "\n") {
		if utf8.RuneCountInString(line) <= width {
			out = append(out, line)
			continue
		}
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		words := strings.Fields(line)
		now := indent + words[0]
		for _, word := range words[1:] {
			if utf8.RuneCountInString(now+" "+word) > width {
				out = append(out, now)
				now = indent + more + word
				continue
			}
			now += " " + word
		}
		out = append(out, now)
	}
	return strings.Join(out, "\n")
}

// Cut shortens a line to width, and shows that it did.
func Cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width-1]) + "…"
}
