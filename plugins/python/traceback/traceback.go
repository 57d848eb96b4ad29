// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package traceback finds the reason for the exit of a Python program at the end of its output: the last uncaught
// exception, with its location, or the text passed to sys.exit.
package traceback

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

// Failure is the reason for a program's failure. Its texts are valid UTF-8, one line, and of limited length.
type Failure struct {
	Text string // "ModuleNotFoundError: No module named 'requests'"
	File string // of the program's innermost frame: "app.py", "gunicorn/util.py"; empty if unknown
	Line int

	Parting bool // Text is only the last line of output, maybe not the reason
}

// String returns one line: "ModuleNotFoundError: No module named 'requests' (app.py:12)".
func (f Failure) String() string {
	if f.File == "" {
		return f.Text
	}
	return fmt.Sprintf("%s (%s:%d)", f.Text, f.File, f.Line)
}

// MaxTail is the maximum number of bytes that Last reads from the end of an output.
const MaxTail = 256 << 10

const (
	maxText  = 300 // characters
	maxName  = 100 // characters
	maxAfter = 10  // other lines of output after the exception
)

var (
	header = regexp.MustCompile(`^(?:  \+ Exception Group )?Traceback \(most recent call last\):$`)
	frame  = regexp.MustCompile(`^(?:  \|)? +File "(.*)", line (\d+)`)
	// a syntax error of the program itself has no header
	syntaxFrame = regexp.MustCompile(`^  File ".*", line \d+$`)
	syntaxError = regexp.MustCompile(`^(?:SyntaxError|IndentationError|TabError):`)
	exception   = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_.<>]*(?:: |:?$)`)
	record      = regexp.MustCompile(`^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):`) // a record of the logging module
	logged      = regexp.MustCompile(`\b(?:WARNING|ERROR|CRITICAL)\b`)          // precedes a logged traceback
	outermost   = regexp.MustCompile(`, in (?:<module>|_run_module_as_main)$`)
	decoration  = regexp.MustCompile(`^ *[|+] ?`)   // prefix of an exception group's lines
	nested      = regexp.MustCompile(`\+-\+-+ 1 -`) // precedes the exceptions of a group
	chained     = regexp.MustCompile(`^(?:During handling of the above|The above exception was the direct cause)`)
	// precedes a traceback that did not end the program; asyncio prints such a traceback for a task that was not awaited
	harmless = regexp.MustCompile(`^(?:Exception (?:in thread|ignored|(?:occurred|happened) during processing) |` +
		`--- Logging error ---$|exception calling callback|Error in atexit|` +
		`(?:future|handle|task|transport): <|source_traceback: )`)
)

// Last finds the failure at the end of a program's standard error. It reads at most the last MaxTail bytes of tail.
// code is the program's exit code, and dirs are the directories of its files. It returns false if it finds no failure,
// or if too much other output follows.
func Last(tail []byte, code int, dirs ...string) (Failure, bool) {
	lines := plainLines(tail[max(0, len(tail)-MaxTail):])
	if f, ok := lastException(lines, code, dirs); ok {
		return f, true
	}
	if len(lines) == 0 || code != 1 || !exitText(lines) {
		return Failure{}, false
	}
	text := plain.Line("exit code 1, last line on stderr: "+lines[len(lines)-1], maxText)
	return Failure{Text: text, Parting: true}, true
}

// exitText reports whether the last line may be the text of sys.exit, and not part of a traceback or a log record.
func exitText(lines []string) bool {
	last := lines[len(lines)-1]
	if last[0] == ' ' || record.MatchString(last) {
		return false
	}
	return !slices.ContainsFunc(lines[max(0, len(lines)-maxAfter):], header.MatchString)
}

// lastException returns the last exception that, judging by its traceback, probably ended the program.
func lastException(lines []string, code int, dirs []string) (f Failure, ok bool) {
	var frames []string // of the traceback that is being read
	var open, syntax, spared, printed, uncaught bool
	before, after := "", 0
	for i, line := range lines {
		text := strings.TrimPrefix(line, "  | ")
		switch {
		case header.MatchString(line):
			open, syntax, frames = true, false, nil
			if !chained.MatchString(before) {
				spared, printed = harmless.MatchString(before), logged.MatchString(before)
			}
		case !open && syntaxFrame.MatchString(line):
			open, syntax, frames = true, true, []string{line}
		case open && frame.MatchString(line):
			frames = append(frames, line)
		case open && text != "" && text[0] != ' ' && exception.MatchString(text) && !record.MatchString(text):
			open = false
			ended := code == 1 && !printed && len(frames) > 0 && (syntax || outermost.MatchString(frames[0]))
			if spared || syntax && !syntaxError.MatchString(text) || uncaught && !ended {
				break
			}
			f, ok, uncaught, after = failure(text, lines[i+1:], frames, dirs), true, ended, 0
		// not a part of the exception's message: if the exception was uncaught, only a log record ends the message
		case !open && line != "" && line[0] != ' ' && (!uncaught || record.MatchString(line)):
			after++
		}
		if line != "" && line[0] != ' ' {
			before = line
		}
	}
	return f, ok && after <= maxAfter
}

// failure describes the exception whose type and message are in line. If it is an exception group, rest lists the
// group's exceptions: then the text also names the first of them, and the location is where that one was raised.
func failure(line string, rest, frames, dirs []string) Failure {
	text := plain.Line(strings.TrimSuffix(line, ":"), maxText)
	leaf := ""
	for i, line := range rest {
		if !decoration.MatchString(line) || leaf != "" && strings.Contains(line, "+---") {
			break
		}
		line = decoration.ReplaceAllString(line, "")
		line = decoration.ReplaceAllString(line, "")
		switch {
		case frame.MatchString(line):
			frames = append(frames, line)
		case exception.MatchString(line) && (i+1 == len(rest) || !nested.MatchString(rest[i+1])):
			leaf = line
		}
	}
	if leaf != "" {
		text = plain.Line(text, maxText/2) + "; the first is " + strings.TrimSuffix(leaf, ":")
	}
	f := Failure{Text: plain.Line(text, maxText)}
	f.File, f.Line = innermost(frames, dirs)
	return f
}

// plainLines returns the lines of an output without control characters, and without empty lines at the end.
func plainLines(tail []byte) []string {
	lines := strings.Split(plain.Text(plain.Uncoloured(string(tail))), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// innermost returns the last frame in the program's own files, or the last frame if no frame is in these files.
func innermost(frames, dirs []string) (file string, line int) {
	ours := false
	for _, f := range frames {
		m := frame.FindStringSubmatch(f)
		name, own := shown(m[1], dirs)
		if ours && !own || file != "" && strings.HasPrefix(name, "<") && !own {
			continue
		}
		file, ours = name, own
		line, _ = strconv.Atoi(m[2])
	}
	return file, line
}

// shown returns the name of a file for display, and whether it is the program's own. A file below one of dirs is the
// program's own, and its name is relative to the first such directory. Other files are shown by their base names.
func shown(name string, dirs []string) (short string, own bool) {
	for _, dir := range dirs {
		below, ok := strings.CutPrefix(path.Clean(name), path.Clean(dir)+"/")
		if ok && len(below) <= maxName {
			return below, true
		}
	}
	return plain.Line(path.Base(name), maxName), name == "<string>"
}
