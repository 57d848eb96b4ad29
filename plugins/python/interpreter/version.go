// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	version "github.com/aquasecurity/go-pep440-version"
)

// Specifier is a set of versions. The zero value allows all.
type Specifier struct {
	text    string
	clauses []clause // all of which a version must fit
}

// clause is one comparison: ">=3.11".
type clause struct {
	operator, version string // of ~= what was written, though checks has two
	checks            []version.Specifiers
}

// What is parsed is bounded, since the time of each check is proportional to it. The packages of a lock may each name
// versions of the interpreter, but few that differ.
const (
	maxLength  = 100 // of a clause
	maxClauses = 200
)

var (
	comparison = regexp.MustCompile(`^(~=|===|==|!=|<=|>=|<|>)?\s*([^\s=<>~]+)$`)
	shortBare  = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)
)

// ParseSpecifier reads a specifier. "" allows each version, and a bare version such as "3.12" is "==3.12.*". An error
// is one sentence with what would be right.
func ParseSpecifier(text string) (Specifier, error) {
	text = strings.TrimSpace(text)
	s := Specifier{text: text}
	parts := strings.Split(text, ",")
	if len(parts) > maxClauses {
		return Specifier{}, fmt.Errorf("version specifier has more than %d parts", maxClauses)
	}
	for _, part := range parts {
		part = strings.TrimSpace(part)
		if len(part) > maxLength {
			return Specifier{}, fmt.Errorf("version specifier has a part that is longer than %d characters", maxLength)
		}
		if part == "" { // also after a last comma, as packaging allows
			continue
		}
		c, err := parseClause(part, len(parts) == 1)
		if err != nil {
			return Specifier{}, fmt.Errorf("%q is not a version specifier: %w", text, err)
		}
		s.clauses = append(s.clauses, c)
	}
	return s, nil
}

func parseClause(text string, alone bool) (clause, error) {
	m := comparison.FindStringSubmatch(text)
	switch {
	case strings.HasPrefix(text, "^"):
		return clause{}, fmt.Errorf("there is no \"^\" in PEP 440, write \">=3.11,<4\" for \"^3.11\"")
	case m == nil:
		return clause{}, fmt.Errorf("write versions such as \">=3.11,<3.14\" or \"3.12\"")
	case m[1] == "" && !alone:
		return clause{}, fmt.Errorf("%q lacks an operator, write it such as \">=%s\"", text, text)
	}
	operator, number := m[1], m[2]
	if operator == "" {
		operator = "=="
		if shortBare.MatchString(number) {
			number += ".*"
		}
	}
	checks, err := parseChecks(operator, number)
	if err != nil {
		return clause{}, fmt.Errorf("%q has no version that %s can compare with, "+
			"write versions such as \">=3.11,<3.14\" or \"3.12\"", text, operator)
	}
	return clause{operator: operator, version: number, checks: checks}, nil
}

// parseChecks is a comparison in the library's terms. The version has its canonical spelling, since the library
// compares prefixes as text. "~=1.4.5a4" becomes ">=1.4.5a4, ==1.4.*", as the PEP defines it, since the library takes
// the pre-release for a part of the release.
func parseChecks(operator, number string) ([]version.Specifiers, error) {
	base, wildcard := strings.CutSuffix(number, ".*")
	v, err := version.Parse(base)
	if err != nil {
		return nil, err
	}
	texts := []string{operator + v.String()}
	release := strings.Split(v.BaseVersion(), ".")
	switch {
	case operator == "===":
		texts[0] = operator + number
	case wildcard:
		texts[0] += ".*"
	case operator == "~=" && len(release) > 1 && v.Local() == "":
		texts = []string{">=" + v.String(), "==" + strings.Join(release[:len(release)-1], ".") + ".*"}
	}
	var checks []version.Specifiers
	for _, text := range texts {
		check, err := version.NewSpecifiers(text)
		if err != nil {
			return nil, err
		}
		checks = append(checks, check)
	}
	return checks, nil
}

// Allows reports whether a version is in the set. A pre-release is if it is within the bounds, even if the specifier
// names none: the interpreter is installed.
func (s Specifier) Allows(text string) bool {
	v, err := version.Parse(text)
	if err != nil {
		return false
	}
	for _, c := range s.clauses {
		for _, check := range c.checks {
			if !check.Check(v) {
				return false
			}
		}
	}
	return true
}

// And is the set of versions that both sets allow.
func (s Specifier) And(other Specifier) Specifier {
	switch {
	case len(s.clauses) == 0:
		return other
	case len(other.clauses) == 0 || s.text == other.text:
		return s
	}
	both := Specifier{clauses: append(s.clauses[:len(s.clauses):len(s.clauses)], other.clauses...)}
	var texts []string
	for _, c := range both.clauses { // a bare version is allowed only alone
		texts = append(texts, c.operator+c.version)
	}
	both.text = strings.Join(texts, ",")
	return both
}

const (
	// newestMinor is how far an open end goes: 3.16 follows 3.15 (PEP 790) a year later.
	newestMinor = 16
	// maxMinor is how far a set with an upper bound goes, such as "<3.20".
	maxMinor = 30
	// maxMicro is more than any minor version has had.
	maxMicro = 60
)

var minorOf = regexp.MustCompile(`^v?3\.([0-9]+)`)

// Minors are the minor versions ("3.11", oldest first) of Python 3 of which the set has a version: those that were
// released or announced, up to 3.16, and newer ones up to the newest that the specifier itself names.
func (s Specifier) Minors() []string {
	newest := newestMinor
	for _, c := range s.clauses {
		if m := minorOf.FindStringSubmatch(c.version); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil {
				newest = max(newest, min(n, maxMinor))
			}
		}
	}
	var minors []string
	for n := range newest + 1 {
		minor := fmt.Sprintf("3.%d", n)
		if has, _ := s.of(minor); has {
			minors = append(minors, minor)
		}
	}
	return minors
}

// Covers reports whether each release of a minor version ("3.11") is in the set.
func (s Specifier) Covers(minor string) bool {
	_, all := s.of(minor)
	return all
}

// of reports whether the set has some, and all, of the releases of a minor version.
func (s Specifier) of(minor string) (some, all bool) {
	all = true
	for micro := range maxMicro + 1 {
		fits := s.Allows(fmt.Sprintf("%s.%d", minor, micro))
		some, all = some || fits, all && fits
		if some && !all {
			break
		}
	}
	return some, all
}

// Exact is the one version that a set such as "==3.11.2" has, spelled as interpreters do ("3.11.2").
func (s Specifier) Exact() (string, bool) {
	if len(s.clauses) != 1 || !strings.HasPrefix(s.clauses[0].operator, "==") {
		return "", false
	}
	v, err := version.Parse(s.clauses[0].version)
	if err != nil || v.Local() != "" {
		return "", false
	}
	text := v.String()
	if rest := strings.TrimPrefix(text, v.BaseVersion()); strings.Count(v.BaseVersion(), ".") == 1 &&
		s.clauses[0].operator == "==" {
		text = v.BaseVersion() + ".0" + rest
	}
	return text, true
}

// String is the specifier as it was written, both parts with a comma for And.
func (s Specifier) String() string { return s.text }

// CompareVersions orders two versions, -1 where a is older. What is no version is older than all versions.
func CompareVersions(a, b string) int {
	va, errA := version.Parse(a)
	vb, errB := version.Parse(b)
	switch {
	case errA != nil && errB != nil:
		return strings.Compare(a, b)
	case errA != nil:
		return -1
	case errB != nil:
		return 1
	}
	return va.Compare(vb)
}

// IsPreRelease reports whether a version precedes a release: "3.13.0rc1".
func IsPreRelease(text string) bool {
	v, err := version.Parse(text)
	return err == nil && v.IsPreRelease()
}
