// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package plain prepares text from other programs and machines for a message, a table or an attribute.
package plain

import (
	"regexp"
	"strings"
	"unicode"
)

// Tail keeps the end of what a program writes to it.
type Tail []byte

// TailSize is how many bytes a Tail keeps at most.
const TailSize = 4 << 10

func (t *Tail) Write(b []byte) (int, error) {
	*t = append(*t, b...)
	*t = (*t)[max(0, len(*t)-TailSize):]
	return len(b), nil
}

// Text returns a text as printable UTF-8. The ends of its lines stay; other characters that can't be printed become
// spaces, so that no terminal obeys them.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
}

// sequences are those that terminals obey (ECMA-48).
var sequences = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)`)

// Uncoloured returns a text without colours and other sequences of terminals.
func Uncoloured(text string) string { return sequences.ReplaceAllString(text, "") }

// Line returns a text as one line of printable UTF-8: white space and characters that can't be printed become single
// spaces. A text of more than most characters is cut there and gets an ellipsis; 0 is no limit.
func Line(text string, most int) string {
	between := func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"), between), " ")
	if r := []rune(text); most > 0 && len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}
