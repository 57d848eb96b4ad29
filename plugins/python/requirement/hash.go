// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// digits is the length of a hash in hex. Other algorithms are not secure, as pip documents too.
var digits = map[string]int{"sha256": 64, "sha384": 96, "sha512": 128}

var hex = regexp.MustCompile(`^[0-9a-f]+$`)

// checkHash returns "sha256:…" in its canonical form.
func checkHash(text string) (string, error) {
	algorithm, value, _ := strings.Cut(strings.ToLower(text), ":")
	if digits[algorithm] == 0 {
		return "", fmt.Errorf("hash %s is not one that is safe: use sha256, sha384 or sha512, as \"--hash=sha256:…\"",
			show(text))
	}
	if len(value) != digits[algorithm] || !hex.MatchString(value) {
		return "", fmt.Errorf("hash %s is not complete: %s has %d hexadecimal digits", show(text), algorithm,
			digits[algorithm])
	}
	return algorithm + ":" + value, nil
}

// fragmentHash is the hash that a URL ends with ("#sha256=…"), as in the pages of indexes, and the URL without it.
func fragmentHash(url string) (hash, rest string) {
	rest, fragment, _ := strings.Cut(url, "#")
	var others []string
	for _, part := range strings.Split(fragment, "&") {
		if h, err := checkHash(strings.Replace(part, "=", ":", 1)); err == nil && hash == "" {
			hash = h
		} else if part != "" {
			others = append(others, part)
		}
	}
	if len(others) > 0 {
		rest += "#" + strings.Join(others, "&")
	}
	return hash, rest
}

// hashed moves the hash of a URL to the other hashes.
func (r requirement) hashed() requirement {
	if h, rest := fragmentHash(r.url); h != "" {
		r.url, r.hashes = rest, sorted(append(slices.Clone(r.hashes), h))
	}
	return r
}

func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
