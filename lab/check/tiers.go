package check

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Tier is a list of tests. Each test is in exactly one: the one that tiers.txt names, or Main.
type Tier string

const (
	Main Tier = "main" // what a newcomer waits for: all unit tests, and the main paths on real agents
	More Tier = "more" // virtual machines, containers, crowds, and what else takes long
	Long Tier = "long" // fault tables with many cells on real agents; More has a sample of them
)

//go:embed tiers.txt
var tierList string

func tiers() ([]rule, error) {
	return parseRules("tiers.txt", tierList, func(tier string) bool { return Tier(tier) == More || Tier(tier) == Long })
}

// sampleVariable tells fault tables to run a part of their cells: those of its number, the
// seed. Each cell runs once in so many seeds as the table says.
const sampleVariable = "OUTRIDER_SAMPLE"

// seed is that of a day.
func seed(day time.Time) string { return fmt.Sprint(day.Unix() / (24 * 60 * 60)) }

// selection is what one go command runs.
type selection struct {
	packages []string
	flags    []string // -run or -skip
	env      []string
}

// selections are the tests of a tier among packages.
func selections(tier Tier, rules []rule, packages []string) []selection {
	rest := slices.DeleteFunc(slices.Clone(packages), func(pkg string) bool {
		return slices.ContainsFunc(rules, func(r rule) bool { return r.test == nil && r.in(pkg) })
	})
	named := func(tier Tier) (names string, in []string) {
		var tests []string
		for _, r := range rules {
			if r.test != nil && (Tier(r.word) == tier || tier == "") {
				tests = append(tests, r.test.String())
				in = append(in, slices.DeleteFunc(slices.Clone(rest), func(pkg string) bool { return !r.in(pkg) })...)
			}
		}
		slices.Sort(in)
		return strings.Join(tests, "|"), slices.Compact(in)
	}
	if tier == Main {
		others, _ := named("")
		if others == "" {
			return []selection{{packages: rest}}
		}
		return []selection{{packages: rest, flags: []string{"-skip=" + others}}}
	}
	var list []selection
	if names, in := named(tier); names != "" {
		list = append(list, selection{packages: in, flags: []string{"-run=" + names}})
	}
	if tier == Long {
		return list
	}
	if names, in := named(Long); names != "" {
		sample := sampleVariable + "=" + seed(time.Now())
		list = append(list, selection{packages: in, flags: []string{"-run=" + names}, env: []string{sample}})
	}
	whole := slices.DeleteFunc(slices.Clone(packages), func(pkg string) bool { return slices.Contains(rest, pkg) })
	return append(list, selection{packages: whole})
}
