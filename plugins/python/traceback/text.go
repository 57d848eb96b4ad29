package traceback

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

const (
	maxTail = 64 << 10
	maxText = 300 // characters
)

var (
	// colours, of Python 3.13 and later, and whatever else a terminal would understand
	escapes = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)`)
	foreign = regexp.MustCompile(`(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/(?:python|pypy)[0-9.]+)/|\.(?:pyx|pxd|pxi)$`)
)

// plainLines are the lines of an output, without those at its end that are empty.
func plainLines(tail []byte) []string {
	tail = tail[max(0, len(tail)-maxTail):]
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

func bounded(text string) string {
	if r := []rune(text); len(r) > maxText {
		return string(r[:maxText-1]) + "…"
	}
	return text
}

// innermost is the first of the frames that is the program's own: not of a
// package that was installed (Cython names its files as they were when it was built), nor of Python. Code without a file (python -c) is
// the program's own where no file is, and otherwise the first frame is taken.
func innermost(frames []string) (file string, line int) {
	best := 0
	for i, f := range frames {
		m := frame.FindStringSubmatch(f)
		rank := 1
		switch {
		case m[1] == "<string>" || m[1] == "<stdin>":
			rank = 2
		case strings.HasPrefix(m[1], "<"): // frozen
			rank = 0
		case !foreign.MatchString(m[1]):
			rank = 3
		}
		if rank > best || i == 0 {
			best = rank
			file = baseName(m[1])
			line, _ = strconv.Atoi(m[2])
		}
	}
	return file, line
}

// baseName keeps the directory where the file is called as all others.
func baseName(name string) string {
	base := path.Base(name)
	if base == "__init__.py" || base == "__main__.py" {
		base = path.Join(path.Base(path.Dir(name)), base)
	}
	return bounded(base)
}
