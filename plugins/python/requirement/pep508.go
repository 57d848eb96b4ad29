// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// requirement is one as in PEP 508, with the hashes of a requirements file.
type requirement struct {
	name   string   // normalised (PEP 503)
	extras []string // lower case, sorted
	specs  []string // "==1.0", sorted; none with a url
	url    string
	marker *marker  // nil: always
	hashes []string // "sha256:…", sorted
}

var (
	nameText   = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?`)
	separators = regexp.MustCompile(`[-_.]+`)
	operator   = regexp.MustCompile(`^(?:===|==|~=|!=|<=|>=|<|>)`)
	word       = regexp.MustCompile(`^[^\s,;()]+`)
	arbitrary  = regexp.MustCompile(`^[A-Za-z0-9._+!-]+$`) // after ===
)

// ProjectName is a project's name as indexes know it (PEP 503).
func ProjectName(name string) string {
	return strings.ToLower(separators.ReplaceAllString(name, "-"))
}

// String is the canonical form, a line of a requirements file.
func (r requirement) String() string {
	var b strings.Builder
	b.WriteString(r.name)
	if len(r.extras) > 0 {
		b.WriteString("[" + strings.Join(r.extras, ",") + "]")
	}
	b.WriteString(strings.Join(r.specs, ","))
	if r.url != "" {
		b.WriteString(" @ " + r.url)
	}
	if r.marker != nil {
		b.WriteString(" ; " + r.marker.String())
	}
	for _, h := range r.hashes {
		b.WriteString(" --hash=" + h)
	}
	return b.String()
}

// pinned reports whether only one version fits.
func (r requirement) pinned() bool {
	return r.url != "" || len(r.specs) == 1 && strings.HasPrefix(r.specs[0], "==") && !strings.HasSuffix(r.specs[0], ".*")
}

// errSyntax is for what is not a requirement that a node can check and install.
var errSyntax = errors.New("write it as \"NAME==VERSION ; MARKER\" or \"NAME @ https://…\"; " +
	"of a path or a repository, build a wheel, and name its directory in find_links, or its URL")

// parse reads a requirement without options. What installers accept besides PEP 508 is refused, with a suggestion.
func parse(text string) (requirement, error) {
	var r requirement
	text = strings.TrimSpace(text)
	s := scanner{nameWheel(text)}
	r.name = ProjectName(s.take(nameText))
	s.blank()
	if r.name == "" {
		return r, fmt.Errorf("%s is not a requirement: %w", show(text), errSyntax)
	}
	if err := r.read(&s); err != nil {
		return r, fmt.Errorf("%s: %w", show(text), err)
	}
	if r.url == "" && IsArchive(text) { // pip would look for a file of that name
		return r, fmt.Errorf("%s looks like a file: %w", show(text), errSyntax)
	}
	return r, nil
}

// read is what follows the name.
func (r *requirement) read(s *scanner) (err error) {
	if s.skip("[") {
		if r.extras, err = s.extras(); err != nil {
			return err
		}
		s.blank()
	}
	if s.skip("@") {
		s.blank()
		if r.url = s.take(notBlank); !index.IsURL(strings.ToLower(r.url)) {
			return fmt.Errorf("it has no https:// URL after the @: %w", errSyntax)
		}
		err = checkPackageURL(r.url)
	} else {
		r.specs, err = s.specifiers()
	}
	if err != nil {
		return err
	}
	s.blank()
	if s.skip(";") {
		r.marker, err = parseMarker(s.rest, requirementVariables)
		return err
	}
	if s.rest != "" {
		return fmt.Errorf("it is not understood from %s on: %w", show(s.rest), errSyntax)
	}
	return nil
}

// extras reads up to the closing bracket. They become lower case, but are not normalised like names: pip before 23.3
// compares them literally.
func (s *scanner) extras() ([]string, error) {
	var list []string
	s.blank()
	for !s.skip("]") {
		extra := s.take(nameText)
		s.blank()
		if extra == "" || !s.skip(",") && !strings.HasPrefix(s.rest, "]") {
			return nil, errors.New("its extras are not names, or not closed: write them as \"NAME[EXTRA,EXTRA]\"")
		}
		list = append(list, strings.ToLower(extra))
		s.blank()
	}
	return sorted(list), nil
}

// specifiers reads versions, in parentheses or not.
func (s *scanner) specifiers() ([]string, error) {
	closed := s.skip("(")
	s.blank()
	var list []string
	for more := operator.MatchString(s.rest); more; more = s.skip(",") {
		s.blank()
		op := s.take(operator)
		if op == "" {
			return nil, errors.New("a comma is not followed by another version")
		}
		s.blank()
		version := s.take(word)
		if !fits(op, version) {
			return nil, fmt.Errorf("%s is not a version that can follow %s (PEP 440)", show(version), op)
		}
		list = append(list, op+version)
		s.blank()
	}
	if closed && (!s.skip(")") || list == nil) {
		return nil, errors.New("a parenthesis is not closed, or has no version in it")
	}
	return sorted(list), nil
}

// isSpecifier reports whether a text is a specifier of PEP 440. A bare version is none.
func isSpecifier(text string) bool {
	_, err := interpreter.ParseSpecifier(text)
	return err == nil && operator.MatchString(strings.TrimSpace(text))
}

// fits reports whether a version can follow an operator.
func fits(op, version string) bool {
	if op == "===" {
		return arbitrary.MatchString(version)
	}
	return isSpecifier(op + version)
}

// scanner consumes a text from its beginning.
type scanner struct{ rest string }

func (s *scanner) blank() { s.rest = strings.TrimLeft(s.rest, " \t") }

func (s *scanner) skip(prefix string) (ok bool) {
	s.rest, ok = strings.CutPrefix(s.rest, prefix)
	return ok
}

// take returns what a pattern matches at the beginning, "" where it does not.
func (s *scanner) take(pattern *regexp.Regexp) string {
	found := pattern.FindString(s.rest)
	s.rest = s.rest[len(found):]
	return found
}
