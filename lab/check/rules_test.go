// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestRules_DemandReasonAndKnownWord(t *testing.T) {
	for _, bad := range []string{"p TestA any", "p TestA # why", "p TestA on-mondays # why", "p Test( any # why"} {
		_, err := parseRules("skips.txt", bad, func(word string) bool { return word == "any" })
		test.ErrorContains(t, err, "skips.txt line 1")
	}
	_, err := skips()
	test.NoError(t, err)
}

func TestRules_AreForTheirTestAndPackage(t *testing.T) {
	list, err := parseRules("skips.txt", "lab/e2e TestA.* any # x\ncore/p - any # y\n", func(string) bool { return true })
	must.NoError(t, err)
	for _, tc := range []struct {
		pkg, test string
		want      bool
	}{
		{"m/lab/e2e", "TestAny", true}, {"lab/e2e", "TestA", true},
		{"m/lab/e2e", "TestB", false}, {"m/other", "TestA", false}, {"m/notlab/e2e", "TestA", false},
		{"m/core/p", "TestB", false}, {"m/core/p", wholePackage, true}, {"lab/e2e", wholePackage, false},
	} {
		_, got := find(list, tc.pkg, tc.test)
		test.Eq(t, tc.want, got, test.Sprint(tc.pkg, tc.test))
	}
}

func TestSkips_HoldWhereTheirConditionDoes(t *testing.T) {
	t.Setenv("OUTRIDER_SAMPLE", "")
	for _, sample := range []string{"", "1"} {
		t.Setenv("OUTRIDER_SAMPLE", sample)
		rules, err := skips()
		must.NoError(t, err)
		_, found := find(rules, "lab/e2e", "TestFaults_ExitIsExactOrLost/processes/none")
		test.Eq(t, sample != "", found)
	}
}

// Names select tests in all packages of a go command: a test of a tier must not share its name
// with a test of another tier.
func TestTiers_HaveEachTestOnce(t *testing.T) {
	rules, err := tiers()
	must.NoError(t, err)
	packages, err := testsBelow("../..")
	must.NoError(t, err)
	used := make([]bool, len(rules))
	counts := map[Tier]int{}
	for _, pkg := range slices.Sorted(maps.Keys(packages)) {
		_, whole := find(rules, pkg, wholePackage)
		for _, name := range packages[pkg] {
			tier := Main
			var by []string
			for i, r := range rules {
				if r.in(pkg) && (r.test == nil || r.test.MatchString(name)) {
					used[i], tier = true, Tier(r.word)
					by = append(by, r.why)
				} else if r.test != nil && r.test.MatchString(name) && !whole {
					t.Errorf("%s of %s is selected with a test of %s", name, pkg, r.pkg)
				}
			}
			test.False(t, len(by) > 1,
				test.Sprintf("%s of %s has %d lines in tiers.txt: %q", name, pkg, len(by), by))
			counts[tier]++
		}
	}
	for i, r := range rules {
		test.True(t, used[i], test.Sprintf("tiers.txt: there is no test %v in %s", r.test, r.pkg))
	}
	t.Logf("tests: %v", counts)
}

func TestTiers_SampleChangesEachDay(t *testing.T) {
	day := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	test.Eq(t, "20779", seed(day))
	test.Eq(t, "20780", seed(day.Add(24*time.Hour)))
}
