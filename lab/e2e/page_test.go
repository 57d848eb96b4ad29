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

// fence is a fenced block of a Markdown page. Comments right above it tell the test how it is run:
//
//	<!-- not run: REASON -->     it is not
//	<!-- prints: TEXT -->        its output has TEXT; may be there several times
//	<!-- fails -->               its last command fails, and is expected to
//	<!-- output -->              it is what the commands above it print: see shown
//	<!-- after: NAME -->         what has to happen before, see incidents
//	<!-- node: NAME -->          the node that this block is for, and those after it; see TestNodePages_CommandsWork
type fence struct {
	page   string
	line   int
	lang   string // sh: commands; hcl: configuration; text: a listing, or output; go, nix: source
	text   string
	notRun string
	prints []string
	fails  bool
	output bool
	after  string
	node   string
}

func (f fence) String() string { return fmt.Sprintf("%s:%d", f.page, f.line) }

var fenceComment = regexp.MustCompile(`^<!-- (not run|prints|fails|output|after|node)(?:: (.+))? -->$`)

// fences returns the fenced blocks of a page's text, and what is wrong with them.
func fences(page, text string) (found []fence, wrong []string) {
	var next, open fence // next collects the comments; open is the block that is being read
	node, within := "", false
	n := 0
	for line := range strings.Lines(text) {
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
				wrong = append(wrong, fmt.Sprintf("%v: the block is of %q, which is none of sh, hcl, text, go, nix", open, lang))
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
				next.after = m[2]
			case "node":
				next.node = m[2]
			}
			if (m[2] == "") != (m[1] == "fails" || m[1] == "output") {
				wrong = append(wrong, fmt.Sprintf("%s:%d: want a colon and a text after all but \"fails\" and \"output\"", page, n))
			}
		default:
			if next.notRun != "" || next.prints != nil || next.fails || next.output || next.after != "" || next.node != "" {
				wrong = append(wrong, fmt.Sprintf("%s:%d: a comment for a block, and no block below it", page, n-1))
			}
			next = fence{}
		}
	}
	if within {
		wrong = append(wrong, fmt.Sprintf("%v: the block does not end", open))
	}
	return found, wrong
}

// shown reports which lines of a page's output the commands did not print: numbers may differ, and "…" stands for
// whatever is there.
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

func readFences(t *testing.T, page string) []fence {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	must.NoError(t, err)
	found, wrong := fences(page, string(text))
	for _, w := range wrong {
		t.Error(w)
	}
	return found
}
