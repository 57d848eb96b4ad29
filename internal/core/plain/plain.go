// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package plain prepares text from other programs and machines for a message, a table or an attribute.
package plain

import (
	"strings"
	"unicode"
)

// Tail keeps the last 4 KiB of what a program writes to it.
type Tail []byte

const tailSize = 4 << 10

func (t *Tail) Write(b []byte) (int, error) {
	*t = append(*t, b...)
	*t = (*t)[max(0, len(*t)-tailSize):]
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
