package main

import (
	"flag"
	"os"
	"regexp"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

var update = flag.Bool("update", false, "write the option tables into the documentation")

const page = "../../docs/exec-lite.md"

func TestTheDocumentedOptionsAreThoseOfTheStructs(t *testing.T) {
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := table(t, have, "plugin options", schema.Of[Config]().Markdown())
	want = table(t, want, "task options", schema.Of[TaskConfig]().Markdown())
	if string(have) == string(want) {
		return
	}
	if !*update {
		t.Fatalf("%s is not up to date: go test ./plugins/exec-lite -update", page)
	}
	if err := os.WriteFile(page, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

// table replaces what is between two comments of a page.
func table(t *testing.T, page []byte, name, content string) []byte {
	between := regexp.MustCompile(`(?s)(<!-- ` + name + ` -->\n).*?(<!-- end -->)`)
	if !between.Match(page) {
		t.Fatalf("page has no place for the %s", name)
	}
	return between.ReplaceAll(page, []byte("${1}"+content+"${2}"))
}
