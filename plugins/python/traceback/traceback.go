// Package traceback finds out of a Python program's last output why it ended.
package traceback

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Failure is why a program failed. Its texts are valid UTF-8, one line, and at most
// 300 characters.
type Failure struct {
	Text string // "ModuleNotFoundError: No module named 'requests'"
	File string // of the innermost frame that is the program's own, without its directory: "app.py"; "" if not known
	Line int
}

// String is one line for people: "ModuleNotFoundError: No module named 'requests' (app.py:12)".
func (f Failure) String() string {
	if f.File == "" {
		return f.Text
	}
	return fmt.Sprintf("%s (%s:%d)", f.Text, f.File, f.Line)
}

// maxAfter is how many lines may follow an exception's first: the rest of its message,
// notes, and what a program says when it exits.
const maxAfter = 10

var (
	header = regexp.MustCompile(`^(?:  \+ Exception Group )?Traceback \(most recent call last\):$`)
	frame  = regexp.MustCompile(`^\s+File "(.*)", line (\d+)(?:,? in .*)?$`)
	// a syntax error of the program itself has no header, and no function
	syntaxFrame = regexp.MustCompile(`^  File ".*", line \d+$`)
	syntaxError = regexp.MustCompile(`^(?:SyntaxError|IndentationError|TabError)(?::|$)`)
	exception   = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_.<>]*(?:: |:?$)`)
	grouped     = regexp.MustCompile(`^\s+[|+]`)
	// what is told of an exception that ended nothing, in the line before its header
	harmless = regexp.MustCompile(`^Exception (?:in thread |ignored )`)
	chained  = regexp.MustCompile(`^(?:During handling of the above exception, another exception occurred|` +
		`The above exception was the direct cause of the following exception):$`)
	usage   = regexp.MustCompile(`^usage: `)
	misused = regexp.MustCompile(`^[^\s:][^:]*: error: .`)
	started = regexp.MustCompile(`^\S*(?:python|pypy)[0-9.]*: ` +
		`(No module named .*|can't open file .*|can't find '__main__' .*|Error while finding module .*)$`)
)

// Last finds the failure that a program's standard error ends with; tail is its end, of
// which the last 64 KiB are looked at. It is false where there is none, since the program
// wrote none or something else after it.
func Last(tail []byte) (Failure, bool) {
	lines := plainLines(tail)
	if f, ok := fatal(lines); ok {
		return f, true
	}
	if f, ok := uncaught(lines, len(tail) >= maxTail); ok {
		return f, true
	}
	if len(lines) == 0 {
		return Failure{}, false
	}
	last := lines[len(lines)-1]
	if m := started.FindStringSubmatch(last); m != nil {
		return Failure{Text: bounded(m[1])}, true
	}
	if misused.MatchString(last) && slices.ContainsFunc(lines[:len(lines)-1], usage.MatchString) { // argparse
		return Failure{Text: bounded(last)}, true
	}
	return Failure{}, false
}

// block is a traceback while it is read.
type block struct {
	frames   []string
	syntax   bool // it began without a header
	harmless bool
}

// uncaught returns the last traceback, if the output ends with it. Where the output is
// cut, it may begin within one.
func uncaught(lines []string, cut bool) (f Failure, ok bool) {
	var b *block
	var before string // the last line that is not empty
	var ended bool    // the last traceback was harmless
	after := 0
	for i, line := range lines {
		switch {
		case header.MatchString(line):
			b = &block{harmless: harmless.MatchString(before) || ended && chained.MatchString(before)}
		case b == nil && syntaxFrame.MatchString(line):
			b = &block{frames: []string{line}, syntax: true}
		case b == nil && cut && frame.MatchString(line): // the header is not in the tail any more
			b = &block{frames: []string{line}}
		case b == nil || line == "":
			if !grouped.MatchString(line) && line != "" {
				after++
			}
		case strings.HasPrefix(line, "  | ") && strings.TrimLeft(line[4:], " ") == line[4:]:
			f, ok, after = b.failure(line[4:]), true, 0
			b, ended = nil, false
		case line[0] == ' ':
			if frame.MatchString(strings.TrimPrefix(line, "  |")) {
				b.frames = append(b.frames, strings.TrimPrefix(line, "  |"))
			}
		case !exception.MatchString(line) || b.syntax && !syntaxError.MatchString(line):
			b = nil
			after++
		case b.harmless:
			b, ended = nil, true
		default:
			f, ok, after = b.failure(line), true, 0
			b, ended = nil, false
		}
		if line != "" {
			before = line
		}
		if i > 0 && line != "" && line[0] != ' ' {
			cut = false
		}
	}
	return f, ok && after <= maxAfter
}

func (b *block) failure(line string) Failure {
	f := Failure{Text: bounded(strings.TrimSuffix(strings.TrimSpace(line), ":"))}
	slices.Reverse(b.frames)
	f.File, f.Line = innermost(b.frames)
	return f
}

var (
	fatalError = regexp.MustCompile(`^Fatal Python error: .`)
	thread     = regexp.MustCompile(`^(?:Current thread|Thread) 0x[0-9a-f]+`)
	fatalRest  = regexp.MustCompile(`^(?:  File ".*|  <.*>|  \.\.\.|(?:Current thread|Thread) 0x.*|Extension modules: .*|` +
		`Python runtime state: .*|Stack \(most recent call first\):|)$`)
)

// fatal reads what faulthandler and a dying interpreter write, the innermost frame first.
func fatal(lines []string) (f Failure, ok bool) {
	current := false
	var frames []string
	after := 0
	for _, line := range lines {
		switch {
		case fatalError.MatchString(line):
			f, ok, after = Failure{Text: bounded(line)}, true, 0
			current, frames = false, nil
		case !ok:
		case thread.MatchString(line):
			current = strings.HasPrefix(line, "Current")
		case current && frame.MatchString(line):
			frames = append(frames, line)
		case !fatalRest.MatchString(line):
			after++
		}
	}
	f.File, f.Line = innermost(frames)
	return f, ok && after <= maxAfter
}
