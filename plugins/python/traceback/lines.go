// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package traceback

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// MaxTail is the size of an output's end that Last reads, in bytes.
const MaxTail = 256 << 10

const (
	maxText = 300 // characters
	maxName = 100
)

var (
	// colours of Python 3.13 and later, and other control sequences of terminals
	escapes = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)`)
	// the directories of installed packages, and of Python's own
	packages = regexp.MustCompile(`(?:^|/)(?:site-packages|dist-packages)/`)
	library  = regexp.MustCompile(`(?:^|/)lib(?:64)?/(?:python|pypy)[0-9.]+/`)
	cython   = regexp.MustCompile(`\.(?:pyx|pxd|pxi)$`)
)

// plainLines are the lines of an output without control characters, and without empty lines at the end.
func plainLines(tail []byte) []string {
	text := escapes.ReplaceAllString(strings.ToValidUTF8(string(tail), "\ufffd"), "")
	text = strings.Map(func(c rune) rune {
		switch {
		case c == '\n':
			return c
		case c == '\t':
			return ' '
		case unicode.IsControl(c) || unicode.Is(unicode.Cf, c): // also those that reverse the direction of text
			return -1
		case c == '\u2028' || c == '\u2029':
			return ' '
		}
		return c
	}, text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func bounded(text string) string { return cutTo(text, maxText) }

func cutTo(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

// innermost is the first of the frames with the highest rank. The program's own files come first, then code without a
// file (python -c), installed packages, Python's library, and what is frozen into the interpreter. Cython names its
// files by their paths at the time of the build: they are taken for an installed package.
func innermost(frames, dirs []string) (file string, line int) {
	best := 0
	for i, f := range frames {
		m := frame.FindStringSubmatch(f)
		rank := 4
		switch {
		case m[1] == "<string>" || m[1] == "<stdin>":
			rank = 3
		case strings.HasPrefix(m[1], "<"): // frozen
			rank = 0
		case packages.MatchString(m[1]) || cython.MatchString(m[1]):
			rank = 2
		case library.MatchString(m[1]):
			rank = 1
		}
		if rank > best || i == 0 {
			best = rank
			file = shown(m[1], dirs)
			line, _ = strconv.Atoi(m[2])
		}
	}
	return file, line
}

// shown is the short name of a file: relative to the directory of packages, or to the first of dirs that it is in, and
// otherwise its base name.
func shown(name string, dirs []string) string {
	for _, where := range []*regexp.Regexp{packages, library} {
		if at := where.FindAllStringIndex(name, -1); at != nil {
			return below(name, name[at[len(at)-1][1]:])
		}
	}
	if !path.IsAbs(name) {
		return below(name, path.Clean(name))
	}
	for _, dir := range dirs {
		if rest, ok := strings.CutPrefix(path.Clean(name), path.Clean(dir)+"/"); ok {
			return below(name, rest)
		}
	}
	return baseName(name)
}

func below(name, rest string) string {
	if rest == "" || len(rest) > maxName || strings.HasPrefix(rest, "../") {
		return baseName(name)
	}
	return rest
}

// baseName is the last part of a path. It includes the directory for names that many packages have.
func baseName(name string) string {
	base := path.Base(name)
	if base == "__init__.py" || base == "__main__.py" {
		base = path.Join(path.Base(path.Dir(name)), base)
	}
	return bounded(base)
}
