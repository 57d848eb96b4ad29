// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// rule is a line of skips.txt or tiers.txt: "package test word # reason".
type rule struct {
	pkg  string         // end of the package path
	test *regexp.Regexp // matches the whole name of a test; nil stands for the package
	word string         // the condition of a skip, or the tier
	why  string
}

// wholePackage stands in the place of a test's name for all of the package.
const wholePackage = "-"

// parseRules reads the lines of a file. Its words are those that known says.
func parseRules(file, text string, known func(word string) bool) ([]rule, error) {
	var rules []rule
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		spec, why, _ := strings.Cut(line, "#")
		f := strings.Fields(spec)
		if len(f) != 3 || strings.TrimSpace(why) == "" {
			return nil, fmt.Errorf("%s line %d: want: package test word # reason", file, n)
		}
		r := rule{pkg: f[0], word: f[2], why: strings.TrimSpace(why)}
		if f[1] != wholePackage {
			var err error
			if r.test, err = regexp.Compile("^(?:" + f[1] + ")$"); err != nil {
				return nil, fmt.Errorf("%s line %d: %w", file, n, err)
			}
		}
		if !known(r.word) {
			return nil, fmt.Errorf("%s line %d: unknown word %q", file, n, r.word)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// in says whether the rule is about tests of this package.
func (r rule) in(pkg string) bool { return pkg == r.pkg || strings.HasSuffix(pkg, "/"+r.pkg) }

// find returns the first rule about a test, by its name, or about a whole package, by wholePackage.
func find(rules []rule, pkg, test string) (rule, bool) {
	i := slices.IndexFunc(rules, func(r rule) bool {
		return r.in(pkg) && (r.test == nil) == (test == wholePackage) && (r.test == nil || r.test.MatchString(test))
	})
	if i < 0 {
		return rule{}, false
	}
	return rules[i], true
}
