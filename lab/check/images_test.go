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

// imageSizes limits the size of an image, in bytes, by its type: readers download all images of a page.
var imageSizes = map[string]int64{".svg": 500_000, ".png": 300_000}

var (
	markdownImage = regexp.MustCompile(`!\[([^\]]*)\]\(([^)\s]+)[^)]*\)`)
	htmlImage     = regexp.MustCompile(`(?s)<(img|source)\s[^>]*>`)
	htmlAttribute = regexp.MustCompile(`(?s)\b(src|srcset|alt)="([^"]*)"`)
)

// Every image on a page must exist, be small, and have alternative text for readers who cannot see it.
func TestImages_ExistAndHaveText(t *testing.T) {
	found := 0
	for _, page := range files(t, "*.md") {
		images, faults := imageFaults(filepath.Dir(page), readFile(t, page))
		found += images
		for _, fault := range faults {
			t.Errorf("%s: %s", page, fault)
		}
	}
	test.Positive(t, found, test.Sprint("no page has an image"))
}

// Every picture that `docs:pictures` draws must be small, even if no page shows it.
func TestImages_AreSmall(t *testing.T) {
	files, err := filepath.Glob("../../docs/images/*")
	must.NoError(t, err)
	must.SliceNotEmpty(t, files)
	for _, file := range files {
		test.Eq(t, "", fileFault(file))
	}
}

func TestImageFaults_ReportsEachKindOfFault(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"a.svg": 500_000, "b.svg": 500_001, "c.png": 300_001, "d.bmp": 1} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o644))
	}
	for text, want := range map[string]string{
		"![a terminal](a.svg)":                             "",
		"[![a terminal](a.svg)](page.md)":                  "",
		"![a terminal](a.svg \"title\")":                   "",
		"<img src=\"a.svg\"\n     alt=\"a terminal\">":     "",
		`<source srcset="a.svg"><img src="a.svg" alt="t">`: "",
		"![](a.svg)":                      "no alt text",
		`<img src="a.svg">`:               "no alt text",
		`<img src="a.svg" alt="">`:        "no alt text",
		"![a](b.svg)":                     "500001 bytes",
		"![a](c.png)":                     "300001 bytes",
		"![a](d.bmp)":                     "neither",
		"![a](none.svg)":                  "no such file",
		`<source srcset="none.svg">`:      "no such file",
		"![a](https://example.org/a.svg)": "another site",
		`<img alt="a">`:                   "no file",
	} {
		_, faults := imageFaults(dir, text)
		if want == "" {
			test.SliceEmpty(t, faults, test.Sprint(text))
		} else {
			test.StrContains(t, strings.Join(faults, "\n"), want, test.Sprint(text))
		}
	}
}

// imageFaults returns the number of images on a page in dir, and what is wrong with them.
func imageFaults(dir, text string) (images int, faults []string) {
	look := func(file, alt string) {
		images++
		var fault string
		switch {
		case file == "":
			fault = "no file"
		case strings.TrimSpace(alt) == "":
			fault = "no alt text"
		case strings.Contains(file, "://"):
			fault = "hosted on another site"
		default:
			fault = fileFault(filepath.Join(dir, filepath.FromSlash(file)))
		}
		if fault != "" {
			faults = append(faults, fmt.Sprintf("image %q: %s", file, fault))
		}
	}
	for _, m := range markdownImage.FindAllStringSubmatch(text, -1) {
		look(m[2], m[1])
	}
	for _, m := range htmlImage.FindAllStringSubmatch(text, -1) {
		attributes := map[string]string{}
		for _, a := range htmlAttribute.FindAllStringSubmatch(m[0], -1) {
			attributes[a[1]] = a[2]
		}
		if m[1] == "source" { // inside a <picture>; the alternative text belongs to the <img>
			look(attributes["srcset"], "its img's")
		} else {
			look(attributes["src"], attributes["alt"])
		}
	}
	return images, faults
}

// fileFault returns the reason why a page must not show an image, or an empty string.
func fileFault(file string) string {
	st, err := os.Stat(file)
	if err != nil {
		return err.Error()
	}
	most, known := imageSizes[filepath.Ext(file)]
	switch {
	case !known:
		return "neither SVG nor PNG: " + file
	case st.Size() > most:
		return fmt.Sprintf("%s has %d bytes, more than %d", file, st.Size(), most)
	}
	return ""
}
