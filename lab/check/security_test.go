// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// Every promise in docs/explain/security.md must name an existing test. Promises are the rows of the tables whose last
// column is "Held by".
func TestSecurityPage_NamesExistingTests(t *testing.T) {
	root := "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs/explain/security.md"))
	must.NoError(t, err)
	packages, err := testsBelow(root)
	must.NoError(t, err)
	exist := map[string]bool{}
	for _, names := range packages {
		for _, name := range names {
			exist[name] = true
		}
	}
	for _, wrong := range unheld(string(page), exist) {
		t.Error(wrong)
	}
}

func TestSecurityPage_PromiseNeedsTest(t *testing.T) {
	exist := map[string]bool{"TestA": true, "TestB": true}
	const head = "| Promise | Held by |\n|---|---|\n"
	for name, row := range map[string]struct {
		page  string
		wrong int
	}{
		"held":                {head + "| x | `TestA`, `TestB` |\n", 0},
		"held by no test":     {head + "| x | a look |\n", 1},
		"held by one of two":  {head + "| x | `TestA`, `TestC` |\n", 1},
		"no promise":          {"| Who | What |\n|---|---|\n| x | a look |\n", 0},
		"a name in the text":  {head + "| x | `TestA` |\n\n`TestC` and `TestB`\n", 1},
		"two tables":          {head + "| x | `TestA` |\n\ntext\n\n" + head + "| y | |\n", 1},
		"after another table": {"| Who | What |\n|---|---|\n| x | y |\n\n" + head + "| y | |\n", 1},
		"no table at all":     {"nothing is promised\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			page := row.page
			if name == "no promise" {
				page += "\n" + head + "| x | `TestA` |\n"
			}
			wrong := unheld(page, exist)
			test.SliceLen(t, row.wrong, wrong, test.Sprint("number of wrong rows"))
		})
	}
}

var (
	testName = regexp.MustCompile(`\bTest[A-Z0-9]\w*`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z0-9]\w*)\(\w+ \*testing\.T\)`)
)

// unheld returns the faults of a page: promises that name no test, and names of tests that do not exist.
func unheld(page string, exist map[string]bool) (wrong []string) {
	promises, within := 0, false
	for line := range strings.Lines(page) {
		names := testName.FindAllString(line, -1)
		for _, name := range names {
			if !exist[name] {
				wrong = append(wrong, "missing test "+name)
			}
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case !strings.HasPrefix(line, "|"):
			within = false
		case strings.TrimSpace(cells[len(cells)-1]) == "Held by":
			within = true
		case within && !strings.HasPrefix(line, "|--"):
			promises++
			if len(names) == 0 {
				wrong = append(wrong, "nothing holds this promise: "+strings.TrimSpace(cells[0]))
			}
		}
	}
	if promises == 0 {
		wrong = append(wrong, "the page has no promise")
	}
	return wrong
}

// testsBelow returns the names of all tests below root, by folder.
func testsBelow(root string) (map[string][]string, error) {
	tests := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata") {
			return filepath.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(b, -1) {
			tests[dir] = append(tests[dir], string(m[1]))
		}
		return err
	})
	return tests, err
}
