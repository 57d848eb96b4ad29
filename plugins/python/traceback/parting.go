// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package traceback

import (
	"bytes"
	"regexp"
	"strings"
)

var (
	warning = regexp.MustCompile(`^\S.*:\d+: [\w.]*Warning: `)
	// lines with a level that are not taken for log records
	bareLevel = regexp.MustCompile(`^(?:ERROR|CRITICAL|FATAL): .`)
)

// parting is the last line of a program that ended with code 1, as by sys.exit("text"). It need not be the reason, so
// that it is shown as the last line. Log records, warnings, progress, and lines that may belong to a traceback, such as
// that of a thread, are not shown.
func parting(tail []byte, lines []string, code int, cut bool) (string, bool) {
	last := lines[len(lines)-1]
	whole, ended := bytes.CutSuffix(tail, []byte("\n"))
	begin := bytes.LastIndexByte(whole, '\n') + 1
	switch {
	case code != 1, !ended, bytes.ContainsRune(bytes.TrimRight(whole[begin:], "\r"), '\r'):
		return "", false
	case last[0] == ' ', !word.MatchString(last), warning.MatchString(last),
		record.MatchString(last) && !bareLevel.MatchString(last):
		return "", false
	}
	for i := len(lines) - 1; i >= 0; i-- {
		line := lines[i]
		if i < len(lines)-1 && record.MatchString(line) {
			break // an earlier traceback did not end the program
		}
		bare := strings.TrimSpace(line)
		if header.MatchString(bare) || frame.MatchString(line) || thread.MatchString(line) {
			return "", false
		}
	}
	const most = 200 // of a line whose beginning is cut off, the end is shown
	if r := []rune(last); begin == 0 && cut && len(r) > most {
		last = "…" + string(r[len(r)-most:])
	}
	return "exit code 1, last line on stderr: " + last, true
}
