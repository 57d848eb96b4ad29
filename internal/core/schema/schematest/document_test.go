// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schematest

import (
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

type options struct {
	Price string `codec:"price" default:"$1" doc:"What it costs, such as ${2}."`
}

func TestDocument_FillsTheTable(t *testing.T) {
	rows := schema.Of[options]().Doc()
	for page, want := range map[string]string{
		"a\n<!-- x -->\n<!-- end -->\nb\n": "a\n<!-- x -->\nTABLE<!-- end -->\nb\n",
		"<!-- x -->\nold\n<!-- end --><!-- y -->\nother\n<!-- end -->": "<!-- x -->\nTABLE<!-- end --><!-- y " +
			"-->\nother\n<!-- end -->",
		"<!-- y -->\n<!-- end -->": "has 0 places for the x",
		"<!-- x -->\n":             "has 0 places for the x",
		"<!-- x -->\n<!-- end -->\n<!-- x -->\n<!-- end -->": "has 2 places for the x",
	} {
		got, err := fill([]byte(page), map[string][]schema.Row{"x": rows})
		text := string(got)
		if err != nil {
			text = err.Error()
		}
		if want = strings.ReplaceAll(want, "TABLE", schema.Table(rows)); text != want && (err == nil ||
			!strings.HasPrefix(text, want)) {
			t.Errorf("%q: got %q, want %q", page, text, want)
		}
		if err != nil {
			continue
		}
		again, err := fill(got, map[string][]schema.Row{"x": rows})
		must.NoError(t, err, must.Sprintf("%q: again: %q", page, again))
		test.Eq(t, text, string(again), test.Sprintf("%q: again: %q", page, again))
	}
}

func TestOwn_OmitsSharedOptions(t *testing.T) {
	type all struct {
		Color string `codec:"color" doc:"Its color."`
		options
	}
	type differs struct {
		Price string `codec:"price" doc:"Another option of that name."`
	}
	table := schema.Table(Own(schema.Of[all]().Doc(), schema.Of[options]().Doc()))
	test.StrContains(t, table, "| `color` |")
	test.StrNotContains(t, table, "| `price` |")
	test.Eq(t, schema.Of[all]().Doc(), Own(schema.Of[all]().Doc(), schema.Of[differs]().Doc()))
}

func TestSource_NeedsExactlyOnePlaceOnThePage(t *testing.T) {
	const comment = "<!-- source: a.go -->\n"
	for page, want := range map[string]string{
		"x\n" + comment + "```go\nold\n```\ny\n": "x\n" + comment + "```go\nA $1\n```\ny\n",
		"x\n":                                    "has 0 places for a.go",
		comment + "```go\n```\n" + comment + "```go\n```\n": "has 2 places for a.go",
	} {
		got, err := show([]byte(page), "a.go", []byte("A $1\n"))
		if err != nil {
			got = []byte(err.Error())
		}
		must.StrHasPrefix(t, want, string(got))
	}
}
