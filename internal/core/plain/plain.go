// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package plain makes text from other programs and machines safe to print in messages, tables and attributes.
package plain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
)

// Tail is an io.Writer that keeps only the last TailSize bytes.
type Tail []byte

// TailSize is the maximum size of a Tail in bytes.
const TailSize = 4 << 10

func (t *Tail) Write(b []byte) (int, error) {
	*t = append(*t, b...)
	*t = (*t)[max(0, len(*t)-TailSize):]
	return len(b), nil
}

// Text returns a text as printable UTF-8. It keeps newlines and replaces all other unprintable characters with spaces,
// so terminals do not interpret them.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
}

// sequences matches the escape sequences of terminals (ECMA-48).
var sequences = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)`)

// Uncoloured removes colors and other escape sequences of terminals from a text.
func Uncoloured(text string) string { return sequences.ReplaceAllString(text, "") }

// Line returns a text as one line of printable UTF-8. Each run of white space and unprintable characters becomes one
// space. If most is not 0, a text of more characters is cut after that many, and an ellipsis is added.
func Line(text string, most int) string {
	between := func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"), between), " ")
	if r := []rune(text); most > 0 && len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}

// controls matches the control characters that encoding/json does not escape: DEL and U+0080 to U+009F.
var controls = regexp.MustCompile(`[\x{7f}-\x{9f}]`)

// JSON writes a value as indented JSON. It escapes all control characters in strings, so terminals do not interpret
// them.
func JSON(w io.Writer, value any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(value)
	if err != nil {
		return err
	}
	_, err = w.Write(controls.ReplaceAllFunc(text.Bytes(), func(c []byte) []byte {
		return fmt.Appendf(nil, `\u%04x`, []rune(string(c))[0])
	}))
	return err
}
