// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// fence is a fenced block of a Markdown page. Comments directly above it control how it is run:
//
//	<!-- not run: REASON -->     it is not run
//	<!-- prints: TEXT -->        its output must contain TEXT; can be repeated
//	<!-- fails -->               its last command must fail
//	<!-- output -->              it shows the output of the commands above it, see shown
//	<!-- after: NAME; NAME -->   incidents that happen before the block is run, see incidents
//	<!-- node: NAME -->          the node of this block and of those after it, see TestNodePages_CommandsWork
type fence struct {
	page   string
	line   int
	lang   string // sh: commands; hcl: configuration; text: a listing, or output; go, nix: source
	text   string
	notRun string
	prints []string
	fails  bool
	output bool
	after  []string
	node   string
}

func (f fence) String() string { return fmt.Sprintf("%s:%d", f.page, f.line) }

var fenceComment = regexp.MustCompile(`^<!-- (not run|prints|fails|output|after|node)(?:: (.+))? -->$`)

// readFences returns the fenced blocks of a page. Mistakes in them fail the test.
func readFences(t *testing.T, page string) (found []fence) {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	must.NoError(t, err)
	var next, open fence // next collects the comments of the next block, open is the current block
	node, within := "", false
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		trimmed := strings.TrimSpace(line)
		lang, mark := strings.CutPrefix(trimmed, "```")
		switch {
		case within && trimmed == "```":
			found = append(found, open)
			within, next = false, fence{}
		case within:
			open.text += line
		case mark:
			open, within = next, true
			if open.node == "" {
				open.node = node
			}
			node = open.node
			open.page, open.line, open.lang = page, n, lang
			switch lang {
			case "sh", "hcl", "text", "go", "nix":
			default:
				t.Errorf("%v: the language is %q, want sh, hcl, text, go or nix", open, lang)
			}
		case fenceComment.MatchString(trimmed):
			m := fenceComment.FindStringSubmatch(trimmed)
			switch m[1] {
			case "not run":
				next.notRun = m[2]
			case "prints":
				next.prints = append(next.prints, m[2])
			case "fails":
				next.fails = true
			case "output":
				next.output = true
			case "after":
				next.after = strings.Split(m[2], "; ")
			case "node":
				next.node = m[2]
			}
			if (m[2] == "") != (m[1] == "fails" || m[1] == "output") {
				t.Errorf("%s:%d: want a colon and a text, except after \"fails\" and \"output\"", page, n)
			}
		default:
			if next.notRun != "" || next.prints != nil || next.fails || next.output || next.after != nil || next.node != "" {
				t.Errorf("%s:%d: the comment has no block below it", page, n-1)
			}
			next = fence{}
		}
	}
	if within {
		t.Errorf("%v: the block has no end", open)
	}
	return found
}

// shown returns the lines of a page's output that the commands did not print. Numbers may differ; "…" matches any
// text.
func shown(page, printed string) (missing []string) {
	for line := range strings.Lines(page) {
		pattern := regexp.MustCompile(`[0-9]+`).ReplaceAllString(regexp.QuoteMeta(strings.TrimSpace(line)), `[0-9]+`)
		pattern = strings.ReplaceAll(pattern, "…", ".*")
		if !regexp.MustCompile(`(?m)^\s*` + pattern + `\s*$`).MatchString(printed) {
			missing = append(missing, line)
		}
	}
	return missing
}
