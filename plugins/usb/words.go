package main

import (
	"fmt"
	"strings"
)

// didYouMean is a hint where one of the words is close.
func didYouMean(word string, words []string) string {
	best, least := "", max(3, len(word)/2)
	for _, w := range words {
		if d := distance(word, w); d < least && d < len(w) { // with a letter in common
			best, least = w, d
		}
	}
	if best == "" || best == word {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// distance is how many letters must be added, removed or replaced (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func oneOf(words []string) string {
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

func quoted(words []string) string {
	return "\"" + strings.Join(words, "\", \"") + "\""
}
