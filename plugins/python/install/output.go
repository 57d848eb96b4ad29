// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// output splits what an installer writes into lines, and removes the passwords of URLs and control characters.
type output struct {
	line  func(string) // called with each line
	rest  []byte
	lines []string // the last ones
}

// maxLines is how many lines an error has.
const maxLines = 10

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.rest = append(o.rest, p...)
	for {
		i := bytes.IndexAny(o.rest, "\r\n") // progress bars use carriage returns
		if i < 0 && len(o.rest) > 1<<16 {
			i = len(o.rest) - 1
		}
		if i < 0 {
			return len(p), nil
		}
		o.take(string(o.rest[:i]))
		o.rest = o.rest[i+1:]
	}
}

// end takes a last line without a line break.
func (o *output) end() { o.take(string(o.rest)); o.rest = nil }

func (o *output) take(line string) {
	line = strings.TrimRight(requirement.Redact(clean(line)), " ")
	if strings.TrimSpace(line) == "" {
		return
	}
	if o.lines = append(o.lines, line); len(o.lines) > maxLines {
		o.lines = o.lines[1:]
	}
	o.line(line)
}

// cut is the beginning of a text, of at most so many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

var escapes = regexp.MustCompile("\x1b(\\[[0-9;?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[@-_])") // ECMA-48

// clean removes colours, control characters and broken UTF-8.
func clean(line string) string {
	line = escapes.ReplaceAllString(strings.ToValidUTF8(line, "?"), "")
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, line)
}
