// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

var update = flag.Bool("update", false, "write the README's chart from docs/benchmarks.md")

const chartFile = "../../docs/images/exec-lite-vs-raw_exec.svg"

// bar is a row of docs/benchmarks.md in the README's chart.
type bar struct {
	row, label, word string

	lite, raw string // as in the table
	ratio     string // "616× less"
}

var bars = []bar{
	{row: "helper memory a task (PSS)", label: "Helper memory per task", word: "less"},
	{row: "start latency, StartTask to first instruction", label: "Start latency (median)", word: "faster"},
	{row: "job of 300 tasks, until all run", label: "300-task job until all run", word: "faster"},
	{row: "processor time of helpers, 300 tasks at rest", label: "Helper CPU, 300 idle tasks", word: "less"},
}

// TestReadme_HasTheFiguresOfTheBenchmarks: the first page and its chart say "616× less" where docs/benchmarks.md has
// 1/616. `go test ./lab/check -run Readme -update` draws the chart anew.
func TestReadme_HasTheFiguresOfTheBenchmarks(t *testing.T) {
	benchmarks := readFile(t, "../../docs/benchmarks.md")
	for i, b := range bars {
		line := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(b.row) + `.*$`).FindString(benchmarks)
		cells := strings.Split(line, "|")
		must.Greater(t, 4, len(cells), must.Sprintf("docs/benchmarks.md has no row %q", b.row))
		bars[i].lite, bars[i].raw = strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		bars[i].ratio = strings.TrimPrefix(strings.TrimSpace(cells[4]), "1/") + "× " + b.word
	}
	if *update {
		must.NoError(t, os.WriteFile(chartFile, []byte(drawChart(t)), 0o644))
	}
	test.Eq(t, drawChart(t), readFile(t, chartFile))
	readme := readFile(t, "../../README.md")
	for _, b := range bars[:3] {
		test.StrContains(t, readme, b.ratio, test.Sprint(b.label))
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(b)
}

// drawChart is an SVG that follows the reader's dark or light mode.
func drawChart(t *testing.T) string {
	t.Helper()
	const left, longest = 230, 430.0
	var b strings.Builder
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 330" role="img" aria-labelledby="t">
<title id="t">exec-lite compared with raw_exec: memory, start latency, time to run 300 tasks, CPU</title>
<style>
 svg{--ink:#1f2933;--soft:#52606d;--raw:#9aa5b1;--lite:#0b69a3;--back:#fff}
 @media (prefers-color-scheme:dark){svg{--ink:#e4e7eb;--soft:#b3bdc7;--raw:#616e7c;--lite:#5ab0ee;--back:#0d1117}}
 text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink);font-size:14px}
 .s{fill:var(--soft);font-size:12.5px} .b{font-weight:600} .raw{fill:var(--raw)} .lite{fill:var(--lite)}
 .back{fill:var(--back)}
</style>
<rect class="back" width="860" height="330" rx="8"/>
<rect class="raw" x="230" y="22" width="12" height="12"/><text x="248" y="33">raw_exec</text>
<rect class="lite" x="330" y="22" width="12" height="12"/><text x="348" y="33">exec-lite</text>
`)
	for i, bar := range bars {
		y := 64 + 60*i
		width := max(2, longest*amount(t, bar.lite)/amount(t, bar.raw))
		fmt.Fprintf(&b, `<text x="216" y="%d" text-anchor="end">%s</text>
<rect class="raw" x="%d" y="%d" width="%.0f" height="18" rx="2"/><text class="s" x="%.0f" y="%d">%s</text>
<rect class="lite" x="%d" y="%d" width="%.1f" height="18" rx="2"/><text class="s" x="%.1f" y="%d">%s</text>
<text class="b" x="844" y="%d" text-anchor="end">%s</text>
`, y+22, bar.label, left, y, longest, left+longest+8, y+14, bar.raw, left, y+21, width, left+width+8, y+35, bar.lite,
			y+35, bar.ratio)
	}
	b.WriteString(`<text class="s" x="16" y="316">Nomad 1.11.3, 2 cores, one run; method: docs/benchmarks.md</text>
</svg>
`)
	return b.String()
}

// amount is the number of a cell such as "27,752 kB".
func amount(t *testing.T, cell string) float64 {
	t.Helper()
	number, _, _ := strings.Cut(strings.ReplaceAll(cell, ",", ""), " ")
	n, err := strconv.ParseFloat(number, 64)
	must.NoError(t, err)
	return n
}
