// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

const (
	maxFile     = 1 << 20 // bytes
	maxLines    = 10_000  // of all files together
	maxFiles    = 50
	maxIncludes = 10 // one within the other; the place of an error names all
)

// place is where something is written, for errors: "requirements.txt:12".
type place struct {
	file string
	line int
}

func (p place) String() string {
	if p.file == "" {
		return fmt.Sprintf("requirement %d", p.line)
	}
	return fmt.Sprintf("%s:%d", p.file, p.line)
}

func (p place) failed(err error) error { return fmt.Errorf("%s: %w", p, err) }

// files reads requirements files as pip's reference specifies ("Requirements File Format").
type files struct {
	read        Reader
	required    []string
	constraints []string
	indexes     index.Sources
	hashed      bool
	names       bool     // a URL
	open        []string // which file includes which
	files       int
	lines       int
}

// file reads a file and those that it includes.
func (f *files) file(name string, constraint bool) error {
	if slices.Contains(f.open, name) {
		return fmt.Errorf("%s includes itself through %s", name, strings.Join(f.open, ", "))
	}
	if f.files++; f.files > maxFiles || len(f.open) == maxIncludes {
		return fmt.Errorf("there are too many files that include others: at most %d, and %d deep", maxFiles, maxIncludes)
	}
	content, err := f.read(name)
	if err != nil {
		return fmt.Errorf("failed to read requirements file %s: %w", name, err)
	}
	if len(content) > maxFile {
		return fmt.Errorf("%s is larger than %d KiB, which no requirements file is", name, maxFile>>10)
	}
	f.open = append(f.open, name)
	defer func() { f.open = f.open[:len(f.open)-1] }()
	return f.text(name, string(content), constraint)
}

var comment = regexp.MustCompile(`(^|[ \t]+)#.*$`)

// text reads the content of a file. It joins continued lines and leaves comments out as pip does.
func (f *files) text(name, content string, constraint bool) error {
	content = strings.TrimPrefix(content, "\ufeff")
	var joined strings.Builder
	start := 0
	lines := strings.Split(content, "\n")
	for i, line := range lines {
		at := place{name, i + 1}
		line = strings.TrimSuffix(line, "\r")
		if f.lines++; f.lines > maxLines {
			return at.failed(fmt.Errorf("there are more than %d lines", maxLines))
		}
		if joined.Len() == 0 {
			start = i + 1
		}
		if strings.HasPrefix(strings.TrimLeft(line, " \t"), "#") {
			line = " " + line // a comment ends a continued line
		} else if before, ok := strings.CutSuffix(line, `\`); ok {
			if line = before; i < len(lines)-1 {
				joined.WriteString(line)
				continue
			}
		}
		joined.WriteString(line)
		if err := f.line(place{name, start}, joined.String(), constraint); err != nil {
			return err
		}
		joined.Reset()
	}
	return nil
}

// line reads a complete line.
func (f *files) line(at place, text string, constraint bool) error {
	text = strings.TrimSpace(comment.ReplaceAllString(text, ""))
	if err := checkText(text); err != nil {
		return at.failed(err)
	}
	if text == "" {
		return nil
	}
	if text[0] == '-' {
		return f.option(at, text, constraint)
	}
	names, err := checkRequirement(text)
	if err != nil {
		return at.failed(err)
	}
	f.names = f.names || names
	f.hashed = f.hashed || strings.Contains(text, "--hash")
	text = strings.Join(strings.Fields(text), " ")
	if constraint {
		f.constraints = append(f.constraints, text)
	} else {
		f.required = append(f.required, text)
	}
	return nil
}

func (f *files) set() *Set {
	return &Set{
		Lines: sorted(f.required), Constraints: sorted(f.constraints), Indexes: f.indexes, Names: f.names,
		Hashed: f.hashed && len(f.required) > 0,
	}
}

// relative is a path that a file names, which is relative to that file.
func relative(file, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(path.Dir(file), name)
}
