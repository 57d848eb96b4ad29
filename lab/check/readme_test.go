// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

var update = flag.Bool("update", false, "write the README's chart and the benchmarks' table from the JSON")

const (
	resultsFile = "../../docs/benchmarks.json"
	tableFile   = "../../docs/explain/benchmarks.md"
	chartFile   = "../../docs/images/exec-lite-vs-raw_exec.svg"
)

// result is a row of docs/benchmarks.json, which lab/bench writes.
type result struct {
	Plugin, Measured, Peer, Unit, Ratio string
	Value                               float64
	PeerValue                           float64 `json:"peer_value"`
}

// bars are the rows of the README's chart, from the results of exec-lite. row is the beginning of Measured.
var bars = []struct{ row, label string }{
	{"memory per task", "Helper memory per task"},
	{"start", "Start latency (median)"},
	{"job of 300 tasks", "300-task job until all run"},
	{"processor, 300 tasks", "Helper CPU, 300 idle tasks"},
}

// After a new `go tool mage bench`, run `go test ./lab/check -run Readme -update` to write the chart and the table.
func TestReadme_HasTheFiguresOfTheBenchmarks(t *testing.T) {
	var results struct {
		Machine, Date string
		Rows          []result
	}
	must.NoError(t, json.Unmarshal([]byte(readFile(t, resultsFile)), &results))
	chosen := make([]result, len(bars))
	for i, b := range bars {
		at := slices.IndexFunc(results.Rows, func(r result) bool {
			return r.Plugin == "exec-lite" && strings.HasPrefix(r.Measured, b.row)
		})
		must.NotEq(t, -1, at, must.Sprintf("%s has no row %q", resultsFile, b.row))
		chosen[i] = results.Rows[at]
	}
	chart := drawChart(chosen)

	const begin, end = "<!-- benchmarks -->\n", "<!-- /benchmarks -->"
	page := readFile(t, tableFile)
	before, rest, found := strings.Cut(page, begin)
	_, after, closed := strings.Cut(rest, end)
	must.True(t, found && closed)
	table := fmt.Sprintf("%s, Nomad 1.11.3, on %s.\n\n", results.Machine, results.Date) +
		"| plugin | measured | | compared with | |\n|---|---|---|---|---|\n"
	for _, r := range results.Rows {
		if r.Ratio == "" { // one of the two values is within the noise
			continue
		}
		table += fmt.Sprintf("| %s | %s | %s | %s: %s | %s |\n", r.Plugin, r.Measured, amount(r.Value, r.Unit), r.Peer,
			amount(r.PeerValue, r.Unit), r.Ratio)
	}
	want := before + begin + table + end + after
	if *update {
		must.NoError(t, os.WriteFile(chartFile, []byte(chart), 0o644))
		must.NoError(t, os.WriteFile(tableFile, []byte(want), 0o644))
		page = want
	}
	test.Eq(t, want, page)
	test.Eq(t, chart, readFile(t, chartFile))
	readme := readFile(t, "../../README.md")
	for i, r := range chosen[:3] {
		test.StrContains(t, readme, r.Ratio, test.Sprint(bars[i].label))
	}
}

// amount formats a value with its unit: 27,752 kB.
func amount(value float64, unit string) string {
	text := strconv.FormatFloat(value, 'f', 1, 64)
	if value >= 100 {
		text = strconv.FormatFloat(value, 'f', 0, 64)
	}
	if len(text) > 3 && !strings.Contains(text, ".") {
		text = text[:len(text)-3] + "," + text[len(text)-3:]
	}
	return text + " " + unit
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(b)
}

// drawChart returns the chart as an SVG image, whose colours follow the reader's dark or light mode.
func drawChart(rows []result) string {
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
	for i, r := range rows {
		y := 64 + 60*i
		width := max(2, longest*r.Value/r.PeerValue)
		fmt.Fprintf(&b, `<text x="216" y="%d" text-anchor="end">%s</text>
<rect class="raw" x="%d" y="%d" width="%.0f" height="18" rx="2"/><text class="s" x="%.0f" y="%d">%s</text>
<rect class="lite" x="%d" y="%d" width="%.1f" height="18" rx="2"/><text class="s" x="%.1f" y="%d">%s</text>
<text class="b" x="844" y="%d" text-anchor="end">%s</text>
`, y+22, bars[i].label, left, y, longest, left+longest+8, y+14, amount(r.PeerValue, r.Unit), left, y+21, width,
			left+width+8, y+35, amount(r.Value, r.Unit), y+35, r.Ratio)
	}
	b.WriteString(`<text class="s" x="16" y="316">Nomad 1.11.3, 2 cores, one run; method: docs/explain/benchmarks.md</text>
</svg>
`)
	return b.String()
}
