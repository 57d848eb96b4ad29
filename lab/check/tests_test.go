// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Each row has the test file of the package m/p. gotestsum runs in a workspace with m/p and m/q, whose tests pass.
func TestRun_ReportsEachKindOfFailure(t *testing.T) {
	const header = "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n\t\"time\"\n)\n\nvar _, _ = os.Args, time.Now\n\n"
	const (
		passes  = header + "func TestPasses(t *testing.T) {}\n"
		fails   = header + "func TestFails(t *testing.T) { t.Error(\"two is not three\") }\n"
		skipped = passes + "func TestSkips(t *testing.T) { t.Skip(\"no mood\") }\n"
		long    = passes + "func TestLong(t *testing.T) {\n\tif testing.Short() {\n\t\tt.Skip(\"" + testsupport.LongSkip +
			"boots a VM\")\n\t}\n}\n"
		hangs    = passes + "func TestHangs(t *testing.T) { time.Sleep(time.Hour) }\n"
		testMain = passes + "func TestMain(m *testing.M) { m.Run(); println(\"a leak\"); os.Exit(1) }\n"
		flaky    = passes + `func TestSometimes(t *testing.T) {
	for _, row := range []string{"a", "b"} {
		t.Run(row, func(t *testing.T) {
			err := os.Mkdir("was-here-"+row, 0o700)
			if err == nil && row == "b" {
				t.Error("this fails once")
			}
		})
	}
}
`
		crowd = header + `func TestCrowd(t *testing.T) {
	for range 6 {
		t.Run("row", func(t *testing.T) { t.Fail() })
	}
}
`
	)
	for _, tc := range []struct {
		name  string
		file  string // the content of m/p/p_test.go
		flags []string
		ci    string
		fails string   // part of the error; empty: no error
		shows []string // parts of the output
		hides []string
	}{
		{name: "everything passes", file: passes, shows: []string{"m/p", "DONE 2 tests in"}, hides: []string{"==="}},
		{name: "a test fails", file: fails, fails: "exit status 1",
			shows: []string{"=== FAIL: m/p TestFails", "two is not three", "DONE 3 runs"}},
		{name: "a test fails once", file: flaky, ci: "true", shows: []string{
			"=== FAIL: m/p TestSometimes/b", "this fails once", "DONE 2 runs",
		}},
		{name: "more than five fail", file: crowd, fails: "exit status",
			shows: []string{"exceeds maximum", "TestCrowd/row#05", "DONE 8 tests"}},
		{name: "a skip", file: skipped, shows: []string{"1 skipped: no mood"}},
		{name: "a skip in CI", file: skipped, ci: "true", fails: "TestSkips was skipped, but CI must run it: no mood"},
		{name: "a long test's skip in CI", file: long, ci: "true", flags: []string{"-short"},
			hides: []string{"skipped: long"}},
		{name: "a package does not compile", file: "package p\n\nvar x int = \"text\"\n",
			fails: "m/p failed outside its tests", shows: []string{`cannot use "text"`}},
		{name: "a test hangs", file: hangs, flags: []string{"-timeout=2s"}, fails: "exit status",
			shows: []string{"TestHangs", "test timed out after 2s"}},
		{name: "a package fails, its tests pass", file: testMain, fails: "m/p failed outside its tests",
			shows: []string{"a leak"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("CI", tc.ci)
			root := pinnedWorkspace(t, "gotestsum", map[string]string{"m/p/p_test.go": tc.file, "m/q/q_test.go": passes})
			var verdict error
			output := captured(t, func() {
				verdict = gotestsum(t.Context(), root, "test", t.TempDir(), []string{"x/m/p", "x/m/q"}, tc.flags...)
			})
			if tc.fails == "" {
				test.NoError(t, verdict, test.Sprint(output))
			} else {
				test.ErrorContains(t, verdict, tc.fails, test.Sprint(output))
			}
			for _, want := range tc.shows {
				test.StrContains(t, output, want)
			}
			for _, unwanted := range tc.hides {
				test.StrNotContains(t, output, unwanted)
			}
		})
	}
}

func TestJudge_RefusesARunWithoutTests(t *testing.T) {
	err := judge(t.Output(), strings.NewReader(""), false)
	test.ErrorContains(t, err, "no test ran")
}

func TestUnitTests_NeedAModuleThatBuildsAlone(t *testing.T) {
	root := workspace(t, map[string]string{
		"m/q.go":         "package m\n\nimport _ \"x/lab\"\n", // m's go.mod does not require x/lab
		"lab/e2e/e.go":   "package e2e\n",
		"lab/e2e/f/f.go": "package f\n",
	})
	units, err := unitTests(t.Context(), root, "lab")
	must.NoError(t, err)
	test.Eq(t, []string{"x/lab"}, units)
	_, err = unitTests(t.Context(), root, "m")
	test.ErrorContains(t, err, "package x/lab is not in std")
	_, err = unitTests(t.Context(), root, "plugins/none")
	test.Error(t, err)
}
