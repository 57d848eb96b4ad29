// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package traceback finds the reason why a Python program ended in the end of its output: an exception with its place,
// a fatal error of the interpreter, or the text of sys.exit.
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
	File string // of the program's innermost frame: "app.py", "gunicorn/util.py"; empty if unknown
	Line int

	Parting bool // Text has the last line, which need not be the reason
}

// String is one line for people: "ModuleNotFoundError: No module named 'requests' (app.py:12)".
func (f Failure) String() string {
	if f.File == "" {
		return f.Text
	}
	return fmt.Sprintf("%s (%s:%d)", f.Text, f.File, f.Line)
}

// The message of an exception, with its notes, may have any number of lines of any form. Which lines belong to it
// depends on what printed the exception. One that was not caught was printed by the interpreter: the traceback begins
// with the program's first frame (<module>), no log record is before it, and the exit code is 1. Then all lines that
// follow belong to the message, except log records. Other exceptions were caught and printed, often by a program that
// continues: then only indented lines belong to the message. A program that ends may still write a few lines.
const (
	maxAfter = 10   // lines after the message
	maxLines = 5000 // lines after the exception, with those of the message
)

var (
	header = regexp.MustCompile(`^(?:(?:  \+ )?Exception Group )?Traceback \(most recent call last\):$`)
	frame  = regexp.MustCompile(`^\s+File "(.*)", line (\d+)(?:,? in .*)?$`)
	// a syntax error of the program itself has no header, and no function
	syntaxFrame = regexp.MustCompile(`^  File ".*", line \d+$`)
	syntaxError = regexp.MustCompile(`^(?:SyntaxError|IndentationError|TabError)(?::|$)`)
	exception   = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_.<>]*(?:: |:?$)`)
	grouped     = regexp.MustCompile(`^\s+[|+]`)
	// the line before a traceback that did not end the program
	harmless = regexp.MustCompile(`^(?:Exception (?:in thread|ignored|` +
		`(?:occurred|happened) during processing of request) |` +
		`--- Logging error ---$|` +
		`exception calling callback for <|Error in atexit\._run_exitfuncs:|` +
		// asyncio's, of tasks that were not awaited
		`(?:asyncgen|future|handle|protocol|server|socket|task|transport): <|source_traceback: )`)
	outermost = regexp.MustCompile(`, in (?:<module>|_run_module_as_main)$`)
	word      = regexp.MustCompile(`[\p{L}\p{N}]`)
	// a log record has a time or a level, or is JSON; one with a traceback has a level of complaint
	record = regexp.MustCompile(`^\W?\d{4}[-/.]\d\d[-/.]\d\d|^\W?\d\d:\d\d:\d\d|^\{".*\}$|\[\d\d/[A-Z][a-z]{2}/\d{4}|` +
		`\b(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b`)
	complaint = regexp.MustCompile(`\b(?:WARN|WARNING|ERROR|CRITICAL|FATAL)\b|\[(?:warning|error|critical)\b`)
	level     = regexp.MustCompile(`^(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL):`)
	chained   = regexp.MustCompile(`^(?:During handling of the above exception, another exception occurred|` +
		`The above exception was the direct cause of the following exception):$`)
	started = regexp.MustCompile(`^\S*(?:python|pypy)[0-9.]*: ` +
		`(No module named .*|can't open file .*|can't find '__main__' .*|Error while finding module .*)$`)
)

// Last finds the failure with which a program's standard error ends. tail is the end of the output, of which the last
// MaxTail bytes are read; code is the program's exit code, and dirs are the directories of its files. It is false if
// the program wrote none, or more after it.
func Last(tail []byte, code int, dirs ...string) (Failure, bool) {
	cut := len(tail) >= MaxTail
	tail = tail[max(0, len(tail)-MaxTail):]
	lines := plainLines(tail)
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
	if code == 1 && syntaxError.MatchString(last) { // of a file that Python can't decode
		return Failure{Text: bounded(last)}, true
	}
	if m := started.FindStringSubmatch(last); m != nil {
		return Failure{Text: bounded(m[1])}, true
	}
	if text, ok := parting(tail, lines, code, cut); ok {
		return Failure{Text: bounded(text), Parting: true}, true
	}
	return Failure{}, false
}

// block is the state of a traceback while it is read.
type block struct {
	frames   []string
	syntax   bool // it began without a header
	harmless bool
	logged   bool // it follows a log record
	cut      bool // its first frames are not in the tail
}

// uncaught reports whether the interpreter printed the traceback.
func (b *block) uncaught(code int) bool {
	return code == 1 && !b.logged && !b.cut && len(b.frames) > 0 && outermost.MatchString(b.frames[0])
}

// lastException is the last traceback, if the output ends with it. If the output is cut, it may begin within one.
func lastException(lines []string, code int, cut bool, dirs []string) (f Failure, ok bool) {
	var b, previous *block
	var before string // the last line that is neither empty nor indented
	var uncaught bool // f is an exception that was not caught
	var empty bool    // the message of f is, so far
	after, foreign := 0, 0
	found := func(i int, line string) {
		// A traceback within a message, or from the interpreter's shutdown, did not end the program.
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
		case b == nil && cut && frame.MatchString(line): // the header is cut off
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
			if b.syntax || len(b.frames) == 0 || !record.MatchString(line) { // a record may come from another thread
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

// failure is the exception in a line. rest are the lines after it, which for a group have its exceptions.
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

// fatal reads the report of faulthandler or of a crashing interpreter, which has the innermost frame first.
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
