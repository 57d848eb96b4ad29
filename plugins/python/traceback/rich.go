// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package traceback

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

var (
	boxTop     = regexp.MustCompile(`^(?:╭─+|\+-+) (Traceback \(most recent call last\)|Error) (?:─+╮|-+\+)$`)
	boxEdge    = regexp.MustCompile(`^(?:[╭╰]─+[╮╯]|\+-+\+)$`)
	arrow      = regexp.MustCompile(`^(?:❱|\\u2771) `) // before the line of the source that failed
	boxContent = regexp.MustCompile(`^[│|] (.*) [│|]$`)
	boxFrame   = regexp.MustCompile(`^(.+):(\d+)(?: ?in ?(\S.*))?$`) // a blank where a line was broken is lost
)

// box is what rich draws, while it is read: a traceback, the place of a syntax error that follows it, or (typer) an
// error.
type box struct {
	title string
	width int    // in characters
	text  string // what may go on in the next line: a place, or the error
	full  bool   // the text's last line had no blank at its end
}

// unboxed writes the tracebacks and errors of rich as Python and click do themselves. What rich draws for a log
// record is indented.
func unboxed(lines []string) []string {
	var out []string
	var b *box
	message := 0 // how wide the box was after which a message is, whose lines rich breaks
	last := ""   // of the message's lines
	indent := ""
	for _, line := range lines {
		if bare := strings.TrimLeft(line, " "); boxTop.MatchString(bare) {
			indent = line[:len(line)-len(bare)]
		}
		rest, inside := strings.CutPrefix(line, indent)
		if line = rest; !inside {
			indent = ""
		}
		m := boxTop.FindStringSubmatch(line)
		switch {
		case m != nil:
			b, message = &box{title: m[1], width: utf8.RuneCountInString(line)}, 0
			if m[1] != "Error" {
				out = append(out, m[1]+":")
			}
		case b != nil && boxEdge.MatchString(line):
			out, message, last = b.put(out), b.width, ""
			b = nil
		case b != nil && boxContent.MatchString(line):
			out = b.read(out, boxContent.FindStringSubmatch(line)[1])
		case message > 0 && last == "" && boxEdge.MatchString(line):
			b, message = &box{width: utf8.RuneCountInString(line)}, 0
		case message > 0 && last != "" && goesOn(last, line, message):
			between := " "
			if utf8.RuneCountInString(last) == message {
				between = ""
			}
			out[len(out)-1] += between + line
			last = line
		default:
			if b != nil {
				out, b = b.put(out), nil
			}
			if last != "" || line == "" {
				message = 0
			}
			out, last = append(out, line), line
		}
	}
	if b != nil {
		out = b.put(out)
	}
	return out
}

// goesOn reports whether a line was broken before the next, since no other word had fitted into it.
func goesOn(line, next string, width int) bool {
	word, _, _ := strings.Cut(next, " ")
	n := utf8.RuneCountInString(line)
	return word != "" && n <= width && n+1+utf8.RuneCountInString(word) > width
}

// read takes a line of the content.
func (b *box) read(out []string, text string) []string {
	trimmed := strings.TrimRight(text, " ")
	starts := trimmed != "" && trimmed[0] != ' ' && !arrow.MatchString(trimmed)
	if b.title == "" { // the place of a syntax error is its first line
		b.title, b.text = "syntax error", strings.TrimSpace(trimmed)
		return b.put(out)
	}
	if !starts && b.title != "Error" {
		return b.put(out)
	}
	if trimmed = strings.TrimSpace(trimmed); b.text != "" && !b.full {
		trimmed = " " + trimmed
	}
	b.text += trimmed
	b.full = strings.TrimRight(text, " ") == text
	return out
}

// put writes what was read, if it is complete.
func (b *box) put(out []string) []string {
	text := b.text
	b.text = ""
	if text == "" {
		return out
	}
	if b.title == "Error" {
		return append(out, "Error: "+text)
	}
	m := boxFrame.FindStringSubmatch(text)
	switch {
	case m == nil:
		return out
	case m[3] == "":
		return append(out, `  File "`+m[1]+`", line `+m[2])
	}
	return append(out, `  File "`+m[1]+`", line `+m[2]+", in "+m[3])
}
