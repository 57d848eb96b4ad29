// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

var (
	reference = regexp.MustCompile(`(?:href|src)="?([^"\s>]+)`)
	identity  = regexp.MustCompile(`id="?([^"\s>]+)`)
)

func TestSite_HasEachPageAndNoDeadLink(t *testing.T) {
	testsupport.Long(t, "builds Hugo and the web site")
	site := t.TempDir()
	out, err := output(t.Context(), nil, "../..", ".ci/site", "--baseURL=/", "--destination="+site)
	must.NoError(t, err, must.Sprint(out))

	pages := map[string]string{}
	err = filepath.WalkDir(site, func(path string, e fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".html" {
			pages[strings.TrimPrefix(path, site)] = readFile(t, path)
		}
		return err
	})
	must.NoError(t, err)
	for _, path := range files(t, "docs/*.md") {
		url := strings.TrimSuffix(strings.TrimPrefix(path, "../../docs"), ".md") + "/index.html"
		test.MapContainsKey(t, pages, strings.TrimPrefix(url, "/README"), test.Sprint("no page for ", path))
	}
	sections, err := filepath.Glob(site + "/*/index.html")
	must.NoError(t, err)
	must.SliceNotEmpty(t, sections)
	for _, path := range sections {
		_, content, _ := strings.Cut(pages[strings.TrimPrefix(path, site)], `<div class="content">`)
		test.StrContains(t, content, "<li>", test.Sprint("no list of the section's pages in ", path))
	}
	for path, text := range pages {
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			test.True(t, leadsSomewhere(site, pages, path, m[1]), test.Sprintf("%s: dead link %s", path, m[1]))
		}
	}
}

// leadsSomewhere reports whether a page's link leads to a file of the site and, if the link has an anchor, to an
// existing element. Links to other sites are not checked.
func leadsSomewhere(site string, pages map[string]string, page, link string) bool {
	if strings.Contains(link, ":") {
		return true
	}
	file, anchor, _ := strings.Cut(link, "#")
	if file == "" {
		file = page
	}
	if strings.HasSuffix(file, "/") {
		file += "index.html"
	}
	if text, found := pages[file]; found {
		ids := identity.FindAllStringSubmatch(text, -1)
		return anchor == "" || slices.ContainsFunc(ids, func(id []string) bool { return id[1] == anchor })
	}
	_, err := os.Stat(filepath.Join(site, file))
	return err == nil
}
