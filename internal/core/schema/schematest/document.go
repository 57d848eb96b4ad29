// Package schematest keeps the documentation of options where their declaration is.
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

// Document fails the test where a page does not have the tables of these schemas,
// each after a comment with its name:
//
//	<!-- plugin options -->
//	<!-- end -->
//
// With go test -update it writes them.
func Document(t testing.TB, page string, schemas map[string]schema.Described) {
	t.Helper()
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want, err := fill(have, schemas)
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

// fill replaces what is between the comments.
func fill(page []byte, schemas map[string]schema.Described) ([]byte, error) {
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		between := regexp.MustCompile(`(?s)(<!-- ` + regexp.QuoteMeta(name) + ` -->\n).*?(<!-- end -->)`)
		if n := len(between.FindAll(page, -1)); n != 1 {
			return nil, fmt.Errorf("has %d places for the %s, not one: write <!-- %s --> and <!-- end -->", n, name, name)
		}
		page = between.ReplaceAllFunc(page, func(old []byte) []byte {
			part := between.FindSubmatch(old)
			return slices.Concat(part[1], []byte(schemas[name].Markdown()), part[2])
		})
	}
	return page, nil
}
