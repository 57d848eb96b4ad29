// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"bytes"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestRunner_RunsUnitTestsOfOneModule(t *testing.T) {
	const passes = "package p\n\nimport \"testing\"\n\nfunc TestPasses(t *testing.T) {}\n"
	const flagged = "package p\n\nimport \"testing\"\n\nfunc TestFlag(t *testing.T) {\n" +
		"\tif testing.Short() {\n\t\tt.Error(\"it is short\")\n\t}\n}\n"
	root := workspace(t, map[string]string{"m/p/p_test.go": flagged, "lab/p/p_test.go": passes,
		"lab/q/q_test.go": flagged, "lab/e2e/e_test.go": flagged})
	for _, tc := range []struct {
		module string
		flags  []string
		fails  bool
	}{{"x/lab", []string{"-short"}, false}, {"x/m", nil, false}, {"x/m", []string{"-short"}, true}} {
		var b bytes.Buffer
		err := (&runner{w: &b, root: root, only: tc.module, flags: tc.flags, plain: "lab/q"}).test(t.Context(), Main)
		test.Eq(t, tc.fails, err != nil, test.Sprint(b.String()))
		test.StrContains(t, b.String(), map[string]string{"x/lab": "DONE 2 tests", "x/m": "DONE 1 tests"}[tc.module])
		test.Eq(t, tc.fails, strings.Contains(b.String(), "it is short"))
	}
	test.ErrorContains(t, TestModule(t.Context(), root, "plugins/none", false), "plugins/none")
}

func TestRunner_JudgesWholeWorkspace(t *testing.T) {
	const header = "package p\n\nimport \"testing\"\n\n"
	const (
		passes  = header + "func TestPasses(t *testing.T) {}\n"
		fails   = header + "func TestFails(t *testing.T) { t.Error(\"two is not three\") }\n"
		skipped = header + "func TestSkips(t *testing.T) { t.Skip(\"no mood\") }\n"
		hangs   = header + "func TestHangs(t *testing.T) { panic(\"test timed out\") }\n"
		table   = "package p\n\nimport (\n\"fmt\"\n\"testing\"\n)\nfunc TestPasses(t *testing.T) {}\n" +
			"func TestMain(m *testing.M) { m.Run(); fmt.Println(\"a table\") }\n"
	)
	for _, tc := range []struct {
		name    string
		files   map[string]string
		allowed string
		tiers   string
		tier    Tier
		ok      bool
		shows   []string
	}{
		{"everything passes", map[string]string{"m/p/p_test.go": passes, "lab/e2e/e_test.go": passes}, "", "", Main, true,
			[]string{"✓  x/m/p", "✓  x/lab/e2e", "DONE 2 tests in"}},
		{"a unit test fails", map[string]string{"m/p/p_test.go": fails, "lab/e2e/e_test.go": passes}, "", "", Main, false,
			[]string{"✖  x/m/p", "two is not three", "DONE 2 tests, 1 failure in"}},
		{"an end-to-end test is skipped", map[string]string{"m/p/p_test.go": passes, "lab/e2e/e_test.go": skipped}, "", "",
			Main, false,
			[]string{"unexpected skip of x/lab/e2e TestSkips", "e_test.go:5: no mood", "no end-to-end test ran"}},
		{"skips have a reason", map[string]string{"m/p/p_test.go": skipped, "m/q/q_test.go": skipped +
			"func TestPasses(t *testing.T) {}\n", "lab/e2e/e_test.go": passes},
			"m/p TestSkips any # bad weather\nm/q TestSkips any # bad weather", "", Main, true,
			[]string{"\n2 skipped, any: bad weather\n"}},
		{"no end-to-end tests", map[string]string{"m/p/p_test.go": passes}, "", "", Main, false,
			[]string{"no end-to-end test ran"}},
		{"no unit tests", map[string]string{"lab/e2e/e_test.go": passes}, "", "", Main, false, []string{"no unit test ran"}},
		{"a package does not compile", map[string]string{"m/p/p.go": "package p\n\nvar x int = \"text\"\n",
			"m/p/p_test.go": passes, "lab/e2e/e_test.go": passes},
			"", "", Main, false, []string{"cannot use \"text\""}},
		{"a test ends the process", map[string]string{"m/p/p_test.go": hangs, "lab/e2e/e_test.go": passes}, "", "", Main,
			false,
			[]string{"TestHangs", "panic: test timed out"}},
		{"a package is left out", map[string]string{"m/p/p_test.go": passes, "m/odd/o_test.go": fails,
			"lab/e2e/e_test.go": passes},
			"m/odd - any # not here", "", Main, true, []string{"1 skipped, no test of m/odd: not here"}},
		{"a table after the tests", map[string]string{"m/p/p_test.go": passes, "lab/e2e/e_test.go": table}, "", "", Main,
			true,
			[]string{"a table\n"}},
		{"other tiers are left out", map[string]string{"m/p/p_test.go": passes, "m/q/q_test.go": fails,
			"lab/e2e/e_test.go": fails + "func TestPasses(t *testing.T) {}\n"},
			"", "lab/e2e TestFails long # x\nm/q - more # x", Main, true, []string{"DONE 2 tests in"}},
		{"another tier", map[string]string{"m/p/p_test.go": fails, "m/q/q_test.go": passes, "lab/e2e/e_test.go": fails +
			"func TestPasses(t *testing.T) {}\n"},
			"", "lab/e2e TestPasses long # x\nm/q - more # x", More, true, []string{"with OUTRIDER_SAMPLE=", "DONE 2 tests in"}},
		{"the long tier", map[string]string{"m/p/p_test.go": fails, "m/q/q_test.go": fails, "lab/e2e/e_test.go": fails +
			"func TestPasses(t *testing.T) {}\n"},
			"", "lab/e2e TestPasses long # x\nm/q - more # x", Long, true, []string{"DONE 1 tests in"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b bytes.Buffer
			skips, err := parseRules("skips.txt", tc.allowed, func(string) bool { return true })
			must.NoError(t, err)
			tiers, err := parseRules("tiers.txt", tc.tiers, func(string) bool { return true })
			must.NoError(t, err)
			err = (&runner{w: &b, root: workspace(t, tc.files), skips: skips, tiers: tiers}).test(t.Context(), tc.tier)
			test.Eq(t, tc.ok, err == nil, test.Sprintf("verdict: %v\n%s", err, &b))
			for _, want := range tc.shows {
				test.StrContains(t, b.String(), want)
			}
		})
	}
}
