// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package schematest tests that documentation pages agree with the code: their tables of options, and the source files
// that they show.
package schematest

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

var update = flag.Bool("update", false, "write the option tables into the documentation")

// Document fails the test if a page does not contain these tables of options. Their keys are the names of the tables,
// and their rows are what Schema.Doc returns. On the page, a table is between two comments, the first with its name:
//
//	<!-- plugin options -->
//	<!-- end -->
//
// With go test -update, Document writes the tables into the page.
func Document(t testing.TB, page string, tables map[string][]schema.Row) {
	t.Helper()
	replace(t, page, func(have []byte) ([]byte, error) { return fill(have, tables) })
}

// Own returns the rows of the first list that are not in the second. Another page documents the shared options.
func Own(all, shared []schema.Row) []schema.Row {
	return slices.DeleteFunc(all, func(r schema.Row) bool { return slices.Contains(shared, r) })
}

// Source fails the test if a page does not show a source file, without its licence header. The code block with the file
// is below a comment that contains name. By convention, name is the path of the file in the repository:
//
//	<!-- source: internal/core/driver/example_test.go -->
//
// With go test -update, Source writes the code block. The test opens the file at the path in the parameter file.
func Source(t testing.TB, page, name, file string) {
	t.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := bytes.Cut(source, []byte("\n\n"))
	replace(t, page, func(have []byte) ([]byte, error) { return show(have, name, code) })
}

func replace(t testing.TB, page string, make func([]byte) ([]byte, error)) {
	t.Helper()
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want, err := make(have)
	switch {
	case err != nil:
		t.Fatalf("%s %v", page, err)
	case bytes.Equal(have, want):
	case !*update:
		t.Fatalf("%s is not up to date: run this test with -update", page)
	default:
		if err := os.WriteFile(page, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// show returns the page with this source in the code block after the comment with this name.
func show(page []byte, name string, source []byte) ([]byte, error) {
	comment := "<!-- source: " + name + " -->\n"
	block := regexp.MustCompile(`(?s)` + regexp.QuoteMeta(comment) + "```go\n.*?```\n")
	if n := len(block.FindAll(page, -1)); n != 1 {
		return nil, fmt.Errorf("has %d places for %s instead of one: write %sand a block of Go below it", n, name, comment)
	}
	return block.ReplaceAllLiteral(page, slices.Concat([]byte(comment+"```go\n"), source, []byte("```\n"))), nil
}

// fill returns the page with these tables, each between the comment with its name and the comment "end".
func fill(page []byte, tables map[string][]schema.Row) ([]byte, error) {
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		between := regexp.MustCompile(`(?s)(<!-- ` + regexp.QuoteMeta(name) + ` -->\n).*?(<!-- end -->)`)
		if n := len(between.FindAll(page, -1)); n != 1 {
			return nil, fmt.Errorf("has %d places for the %s instead of one: write <!-- %s --> and <!-- end -->", n, name, name)
		}
		page = between.ReplaceAllFunc(page, func(old []byte) []byte {
			part := between.FindSubmatch(old)
			return slices.Concat(part[1], []byte(schema.Table(tables[name])), part[2])
		})
	}
	return page, nil
}
