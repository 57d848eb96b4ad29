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
	boxFrame   = regexp.MustCompile(`^(.+):(\d+)(?: ?in ?(\S.*))?$`) // a line break may have replaced a blank
)

// box is the state of a box of rich while it is read: a traceback, the place of a syntax error after it, or an error of
// typer.
type box struct {
	title string
	width int    // in characters
	text  string // that may continue in the next line: a place, or the error
	full  bool   // the text's last line fills the box
}

// unboxed rewrites the tracebacks and errors of rich in the format of Python and click. A traceback within a log record
// is indented.
func unboxed(lines []string) []string {
	var out []string
	var b *box
	message := 0 // the width of the box before a message, at which rich breaks the message's lines; 0 without one
	last := ""   // the last line of the message
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

// goesOn reports whether a line was broken before the next one: the next word would not have fitted into it.
func goesOn(line, next string, width int) bool {
	word, _, _ := strings.Cut(next, " ")
	n := utf8.RuneCountInString(line)
	return word != "" && n <= width && n+1+utf8.RuneCountInString(word) > width
}

// read reads a line of the content, and appends what it completes.
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

// put appends the text that was read, if it is a place or an error.
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
