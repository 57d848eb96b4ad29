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

// MaxTail is how much of an output's end is looked at, in bytes.
const MaxTail = 256 << 10

const (
	maxText = 300 // characters
	maxName = 100
)

var (
	// colours, of Python 3.13 and later, and whatever else a terminal would understand
	escapes = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)`)
	// where packages are, those that were installed and Python's own
	packages = regexp.MustCompile(`(?:^|/)(?:site-packages|dist-packages)/`)
	library  = regexp.MustCompile(`(?:^|/)lib(?:64)?/(?:python|pypy)[0-9.]+/`)
	cython   = regexp.MustCompile(`\.(?:pyx|pxd|pxi)$`)
)

// plainLines are the lines of an output, without those at its end that are empty.
func plainLines(tail []byte) []string {
	text := escapes.ReplaceAllString(strings.ToValidUTF8(string(tail), "\ufffd"), "")
	text = strings.Map(func(c rune) rune {
		switch {
		case c == '\n':
			return c
		case c == '\t':
			return ' '
		case unicode.IsControl(c) || unicode.Is(unicode.Cf, c): // and what turns the direction of text
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

// innermost is the first of the frames that is the program's own, rather than of a package that was installed (Cython
// names its files as they were when it was built), and such a one rather than Python's. Code without a file (python -c)
// is the program's own where no file is, and otherwise the first frame is taken.
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

// shown is the short name of a file: from the directory of packages or one of dirs on, the first that it is in, or else
// its name alone.
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

// baseName keeps the directory where the file is called as all others.
func baseName(name string) string {
	base := path.Base(name)
	if base == "__init__.py" || base == "__main__.py" {
		base = path.Join(path.Base(path.Dir(name)), base)
	}
	return bounded(base)
}
