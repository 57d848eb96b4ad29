// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package match

import "unicode/utf8"

// glob says whether all of s fits the pattern, in which * stands for any
// characters, a slash too, and ? for one. Nothing else is special.
func glob(pattern, s string) bool {
	star, rest := -1, "" // where to go on if what follows the last * does not fit
	p := 0
	for s != "" {
		if p < len(pattern) && pattern[p] == '*' {
			star, rest, p = p, s, p+1
			continue
		}
		_, width := utf8.DecodeRuneInString(s)
		switch {
		case p < len(pattern) && pattern[p] == '?':
			p, s = p+1, s[width:]
		case p < len(pattern) && pattern[p] == s[0]:
			p, s = p+1, s[1:]
		case star >= 0: // the * takes one more
			_, width = utf8.DecodeRuneInString(rest)
			rest = rest[width:]
			p, s = star+1, rest
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

func anyGlob(patterns []string, texts ...string) bool {
	for _, p := range patterns {
		for _, s := range texts {
			if glob(p, s) {
				return true
			}
		}
	}
	return false
}
