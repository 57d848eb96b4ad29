// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package traceback finds the reason why a Python program ended in the end of its output: an exception with its place,
// a fatal error of the interpreter, or the complaint of a command line parser.
package traceback

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Failure is why a program failed. Its texts are valid UTF-8, one line, and at most 300 characters.
type Failure struct {
	Text string // "ModuleNotFoundError: No module named 'requests'"
	File string // of the innermost frame that is the program's own: "app.py", "gunicorn/util.py"; "" if not known
	Line int

	Parting bool // it is the last line alone, which need not be the reason
}

// String is one line for people: "ModuleNotFoundError: No module named 'requests' (app.py:12)".
func (f Failure) String() string {
	if f.File == "" {
		return f.Text
	}
	return fmt.Sprintf("%s (%s:%d)", f.Text, f.File, f.Line)
}

// A message, with its notes, may have any number of lines of any form, so that what may follow the first line of an
// exception depends on what printed it. The interpreter prints an exception that was not caught: the traceback begins
// with the program's first frame (<module>), no log record announces it, and the exit code is 1. Then all lines that
// follow are the message, except log records. Other exceptions were caught and printed, often by a program that goes
// on: then only indented lines are of the message. A program that ends may still write a little.
const (
	maxAfter = 10   // lines that are not the message's
	maxLines = 5000 // with the message's
)

var (
	header = regexp.MustCompile(`^(?:(?:  \+ )?Exception Group )?Traceback \(most recent call last\):$`)
	frame  = regexp.MustCompile(`^\s+File "(.*)", line (\d+)(?:,? in .*)?$`)
	// a syntax error of the program itself has no header, and no function
	syntaxFrame = regexp.MustCompile(`^  File ".*", line \d+$`)
	syntaxError = regexp.MustCompile(`^(?:SyntaxError|IndentationError|TabError)(?::|$)`)
	exception   = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_.<>]*(?:: |:?$)`)
	grouped     = regexp.MustCompile(`^\s+[|+]`)
	// the line before the header of an exception that did not end the program
	harmless = regexp.MustCompile(`^(?:Exception (?:in thread|ignored|` +
		`(?:occurred|happened) during processing of request) |` +
		`--- Logging error ---$|` +
		`exception calling callback for <|Error in atexit\._run_exitfuncs:|` +
		// asyncio's, of what was not awaited
		`(?:asyncgen|future|handle|protocol|server|socket|task|transport): <|source_traceback: )`)
	outermost = regexp.MustCompile(`, in (?:<module>|_run_module_as_main)$`)
	word      = regexp.MustCompile(`[\p{L}\p{N}]`)
	// a log record has a time or a level, or is JSON; the one before a traceback complains
	record = regexp.MustCompile(`^\W?\d{4}[-/.]\d\d[-/.]\d\d|^\W?\d\d:\d\d:\d\d|^\{".*\}$|\[\d\d/[A-Z][a-z]{2}/\d{4}|` +
		`\b(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b`)
	complaint = regexp.MustCompile(`\b(?:WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\[(?:warning|error|critical)\b`)
	level     = regexp.MustCompile(`^(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL):`)
	chained   = regexp.MustCompile(`^(?:During handling of the above exception, another exception occurred|` +
		`The above exception was the direct cause of the following exception):$`)
	started = regexp.MustCompile(`^\S*(?:python|pypy)[0-9.]*: ` +
		`(No module named .*|can't open file .*|can't find '__main__' .*|Error while finding module .*)$`)
)

// Last finds the failure that a program's standard error ends with; tail is its end, of which the last MaxTail bytes
// are looked at, code the program's exit code, and dirs are where its files are. It is false where there is none, since
// the program wrote none or something else after it.
func Last(tail []byte, code int, dirs ...string) (Failure, bool) {
	cut := len(tail) >= MaxTail
	tail = tail[max(0, len(tail)-MaxTail):]
	lines := unboxed(plainLines(tail))
	if f, ok := fatal(lines, dirs); ok {
		return f, true
	}
	if f, ok := lastException(lines, code, cut, dirs); ok {
		return f, true
	}
	if len(lines) == 0 {
		return Failure{}, false
	}
	last := lines[len(lines)-1]
	if code == 1 && syntaxError.MatchString(last) { // of a file that can't be shown
		return Failure{Text: bounded(last)}, true
	}
	if m := started.FindStringSubmatch(last); m != nil {
		return Failure{Text: bounded(m[1])}, true
	}
	if text, ok := misuse(lines); ok {
		return Failure{Text: bounded(text)}, true
	}
	if text, ok := parting(tail, lines, code, cut); ok {
		return Failure{Text: bounded(text), Parting: true}, true
	}
	return Failure{}, false
}

// block is a traceback while it is read.
type block struct {
	frames   []string
	syntax   bool // it began without a header
	harmless bool
	logged   bool // a log record is before it
	cut      bool // the first frames are not in the tail
}

// uncaught reports whether the interpreter printed it.
func (b *block) uncaught(code int) bool {
	return code == 1 && !b.logged && !b.cut && len(b.frames) > 0 && outermost.MatchString(b.frames[0])
}

// lastException is the last traceback, if the output ends with it. Where the output is
// cut, it may begin within one.
func lastException(lines []string, code int, cut bool, dirs []string) (f Failure, ok bool) {
	var b, previous *block
	var before string // the last line that is neither empty nor indented
	var uncaught bool // f is an exception that was not caught
	var empty bool    // so far, its message is
	after, foreign := 0, 0
	found := func(i int, line string) {
		// One within a message, or of while the interpreter ends, did not end the program.
		if is := b.uncaught(code); !b.harmless && (is || !uncaught || b.logged) {
			f, ok, uncaught = b.failure(line, lines[i+1:], dirs), true, is
			empty, after, foreign = strings.HasSuffix(line, ":"), 0, 0
		}
		b, previous = nil, b
	}
	follows := func(line string) {
		after++
		if uncaught && record.MatchString(line) || !uncaught && line[0] != ' ' {
			foreign++
		}
		if empty && word.MatchString(line) {
			f.Text, empty = bounded(f.Text+": "+strings.TrimSpace(line)), false
		}
	}
	for i, line := range lines {
		switch {
		case header.MatchString(line):
			b = &block{harmless: harmless.MatchString(before), logged: complaint.MatchString(before)}
			if previous != nil && chained.MatchString(before) {
				b.harmless, b.logged = previous.harmless, previous.logged
			}
		case b == nil && syntaxFrame.MatchString(line):
			b = &block{frames: []string{line}, syntax: true}
		case b == nil && cut && frame.MatchString(line): // the header is not in the tail any more
			b = &block{frames: []string{line}, cut: true}
		case line == "":
		case b == nil:
			if !grouped.MatchString(line) {
				follows(line)
			}
		case strings.HasPrefix(line, "  | ") && strings.TrimLeft(line[4:], " ") == line[4:]:
			found(i, line[4:])
		case line[0] == ' ':
			if frame.MatchString(strings.TrimPrefix(line, "  |")) {
				b.frames = append(b.frames, strings.TrimPrefix(line, "  |"))
			}
		case !b.endsWith(line):
			if b.syntax || len(b.frames) == 0 || !record.MatchString(line) { // which another thread writes in between
				b = nil
				follows(line)
			}
		default:
			found(i, line)
		}
		if line != "" && line[0] != ' ' {
			before = line
			cut = cut && i == 0
		}
	}
	return f, ok && foreign <= maxAfter && after <= maxLines
}

// endsWith reports whether a line can be the exception.
func (b *block) endsWith(line string) bool {
	return exception.MatchString(line) && !level.MatchString(line) && (!b.syntax || syntaxError.MatchString(line))
}

// failure is of the exception that a line has; rest are the lines after it, which of a group have its exceptions.
func (b *block) failure(line string, rest, dirs []string) Failure {
	f := Failure{Text: bounded(strings.TrimSuffix(strings.TrimSpace(line), ":"))}
	slices.Reverse(b.frames)
	frames := b.frames
	if l := firstLeaf(rest, "  ", 0); l.text != "" {
		f.Text = bounded(cutTo(f.Text, maxText/2) + "; the first is " + l.text)
		frames = slices.Concat(l.frames, frames)
	}
	f.File, f.Line = innermost(frames, dirs)
	return f
}

var (
	fatalError = regexp.MustCompile(`^Fatal Python error: .`)
	thread     = regexp.MustCompile(`^(?:(?:Current thread|Thread) 0x[0-9a-f]+|Stack \(most recent call first.*\):$)`)
	fatalRest  = regexp.MustCompile(`^(?:  File ".*|  Binary file ".*|  <.*>|  \.\.\.|Current thread's C stack trace .*|` +
		`Extension modules: .*|Python runtime state: .*|)$`)
)

// fatal reads what faulthandler and a dying interpreter write, the innermost frame first.
func fatal(lines, dirs []string) (f Failure, ok bool) {
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
			current = !strings.HasPrefix(line, "Thread")
		case current && frame.MatchString(line):
			frames = append(frames, line)
		case !fatalRest.MatchString(line):
			after++
		}
	}
	f.File, f.Line = innermost(frames, dirs)
	return f, ok && after <= maxAfter
}
