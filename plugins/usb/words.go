// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/agext/levenshtein"
)

// didYouMean is a hint where one of the words is close.
func didYouMean(word string, words []string) string {
	best, least := "", max(3, len(word)/2)
	for _, w := range words {
		if d := levenshtein.Distance(word, w, nil); d < least && d < len(w) { // with a letter in common
			best, least = w, d
		}
	}
	if best == "" || best == word {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

func oneOf(words []string) string {
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

func quoted(words []string) string {
	return "\"" + strings.Join(words, "\", \"") + "\""
}
