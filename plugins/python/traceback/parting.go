// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package traceback

import (
	"bytes"
	"regexp"
	"strings"
)

var (
	usage     = regexp.MustCompile(`^ ?[Uu]sage: `)
	misused   = regexp.MustCompile(`^[^\s:][^:]*: error: .`) // argparse
	clickLine = regexp.MustCompile(`^Error: .`)
	warning   = regexp.MustCompile(`^\S.*:\d+: [\w.]*Warning: `)
	// lines that are shown although they have a level
	bareLevel = regexp.MustCompile(`^(?:ERROR|CRITICAL|FATAL): .`)
	// how click and typer end when Nomad stops the task
	aborted = regexp.MustCompile(`^Aborted[!.]$`)
)

// misuse is what argparse or click say of a program's arguments: after how they are to be written, and at the end.
func misuse(lines []string) (string, bool) {
	at := len(lines) - 1
	for at > 0 && strings.HasPrefix(lines[at], " ") { // of what click lists
		at--
	}
	text := lines[at]
	if !misused.MatchString(text) && !clickLine.MatchString(text) {
		return "", false
	}
	for i := at - 1; i >= 0; i-- {
		if usage.MatchString(lines[i]) {
			if strings.HasSuffix(text, ":") {
				text = strings.Join(strings.Fields(text+" "+strings.Join(lines[at+1:], " ")), " ")
			}
			return text, true
		}
	}
	return "", false
}

// parting is the last line of a program that ended with code 1, as by sys.exit("text") and click's errors. From stderr
// alone it is unknown whether it is the reason, so that it is shown as what it is, and only where it is nothing else:
// no log record, no warning, no progress, and nothing that may be of a traceback, such as one of a thread.
func parting(tail []byte, lines []string, code int, cut bool) (string, bool) {
	last := lines[len(lines)-1]
	whole, ended := bytes.CutSuffix(tail, []byte("\n"))
	begin := bytes.LastIndexByte(whole, '\n') + 1
	switch {
	case code != 1, !ended, bytes.ContainsRune(bytes.TrimRight(whole[begin:], "\r"), '\r'):
		return "", false
	case last[0] == ' ', !word.MatchString(last), aborted.MatchString(last), warning.MatchString(last),
		record.MatchString(last) && !bareLevel.MatchString(last):
		return "", false
	}
	for i := len(lines) - 1; i >= 0; i-- {
		line := lines[i]
		if i < len(lines)-1 && record.MatchString(line) {
			break // what was before that is over
		}
		bare := strings.TrimSpace(line)
		if header.MatchString(bare) || boxTop.MatchString(bare) || frame.MatchString(line) || thread.MatchString(line) {
			return "", false
		}
	}
	if clickLine.MatchString(last) {
		return last, true
	}
	const most = 200 // of one whose beginning is lost, its end is shown
	if r := []rune(last); begin == 0 && cut && len(r) > most {
		last = "…" + string(r[len(r)-most:])
	}
	return "exit code 1, last line on stderr: " + last, true
}
