// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// files returns the paths of the files that git tracks and that match one of the patterns.
func files(t *testing.T, patterns ...string) (paths []string) {
	t.Helper()
	const root = "../.."
	found, err := tracked(t.Context(), root, patterns...)
	must.NoError(t, err)
	for _, path := range found {
		paths = append(paths, filepath.Join(root, path))
	}
	return paths
}

// bareMage matches a mage command without "go tool", which works only if mage is installed.
var bareMage = regexp.MustCompile(`(^|[^."/\w])mage (build|lint|bench|conformance|` +
	`(lab|demo|docs|test|new|nix|release):[a-z]+)\b`)

func TestPages_UseGoToolMage(t *testing.T) {
	var patterns []string
	for _, folder := range []string{"docs", "plugins", "lab", "internal", "deploy", "nix"} {
		for _, suffix := range []string{".md", ".hcl", ".tmpl", ".go", "Dockerfile"} {
			patterns = append(patterns, folder+"/*"+suffix)
		}
	}
	paths := files(t, patterns...)
	must.Greater(t, 500, len(paths))
	for _, path := range paths {
		for line := range strings.Lines(strings.ReplaceAll(readFile(t, path), "go tool mage", "")) {
			test.False(t, bareMage.MatchString(line) && !strings.HasSuffix(path, "_test.go"), test.Sprintf(
				"%s: write \"go tool mage\" in %q", path, strings.TrimSpace(line)))
		}
	}
}

// page has the headings and links of a Markdown page, except those in fenced code blocks.
type page struct {
	titles  int // number of first-level headings
	anchors map[string]bool
	links   []string
}

var (
	headingLine = regexp.MustCompile(`^(#+) (.+)`)
	linkTarget  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	noAnchor    = regexp.MustCompile(`[^\p{L}\p{N}\s_-]`) // characters that an anchor on GitHub omits
)

func readPage(text string) page {
	p := page{anchors: map[string]bool{}}
	fenced := false
	var prose strings.Builder // the page's text in one piece, because a link may continue on the next line
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		prose.WriteString(line)
		if m := headingLine.FindStringSubmatch(line); m != nil {
			if m[1] == "#" {
				p.titles++
			}
			words := linkTarget.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[2])), "]")
			anchor := strings.ReplaceAll(noAnchor.ReplaceAllString(words, ""), " ", "-")
			for n, base := 1, anchor; p.anchors[anchor]; n++ {
				anchor = fmt.Sprintf("%s-%d", base, n)
			}
			p.anchors[anchor] = true
		}
	}
	for _, m := range linkTarget.FindAllStringSubmatch(prose.String(), -1) {
		p.links = append(p.links, m[1])
	}
	return p
}

// brokenLinks returns the links of the page at path whose file or heading does not exist.
func brokenLinks(path string, p page) (broken []string) {
	for _, link := range p.links {
		if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
			continue
		}
		file, anchor, _ := strings.Cut(link, "#")
		to := p
		if file != "" {
			file = filepath.Join(filepath.Dir(path), file)
			text, err := os.ReadFile(file)
			if _, statErr := os.Stat(file); statErr != nil || anchor != "" && err != nil {
				broken = append(broken, link)
				continue
			}
			to = readPage(string(text))
		}
		if anchor != "" && !to.anchors[anchor] {
			broken = append(broken, link)
		}
	}
	return broken
}

func TestPages_HaveOneTitleAndNoBrokenLink(t *testing.T) {
	for _, path := range files(t, "docs/*.md", "deploy/*.md", "plugins/*.md", ":(glob)*.md") {
		p := readPage(readFile(t, path))
		test.Eq(t, 1, p.titles, test.Sprintf("%s: headings of the first level", path))
		test.SliceEmpty(t, brokenLinks(path, p), test.Sprintf("%s: broken links", path))
	}
}

func TestPage_FindsBrokenLinks(t *testing.T) {
	const text = "# A `b` (c)\n\n```sh\n# no title\n```\n\n## X: y\n\n## X: y\n\n[1](#a-b-c) [2](#x-y-1) [3](#no-title) " +
		"[4](https://x.invalid/#z) [5](page.md#one) [6](page.md#two) [7](gone.md) [8](.)\n"
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "page.md"), []byte("# One\n"), 0o600))
	p := readPage(text)
	test.Eq(t, 1, p.titles)
	test.Eq(t, []string{"#no-title", "page.md#two", "gone.md"}, brokenLinks(filepath.Join(dir, "a.md"), p))
}
