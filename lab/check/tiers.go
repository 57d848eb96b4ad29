// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	_ "embed"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Tier is a list of tests. Each test is in exactly one: the one that tiers.txt names, or Main.
type Tier string

// The tiers, each beside the others.
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

// sampleVar has the seed by which fault tables choose a sample of their cells. Without it they run all.
const sampleVar = "OUTRIDER_SAMPLE"

// seed is that of a day.
func seed(day time.Time) string { return fmt.Sprint(day.Unix() / (24 * 60 * 60)) }

// selection is what one go command runs.
type selection struct {
	packages, flags []string
	env             string // "NAME=value", or empty
}

// selections are the tests of a tier among packages.
func selections(tier Tier, rules []rule, packages []string) []selection {
	var whole, rest []string // packages that are in a tier as a whole, and the others
	for _, pkg := range packages {
		if _, found := find(rules, pkg, wholePackage); found {
			whole = append(whole, pkg)
		} else {
			rest = append(rest, pkg)
		}
	}
	names := map[Tier][]string{}
	in := map[Tier][]string{} // the packages of those names
	for _, r := range rules {
		if r.test == nil {
			continue
		}
		names[Tier(r.word)] = append(names[Tier(r.word)], r.test.String())
		for _, pkg := range rest {
			if r.in(pkg) && !slices.Contains(in[Tier(r.word)], pkg) {
				in[Tier(r.word)] = append(in[Tier(r.word)], pkg)
			}
		}
	}
	run := func(tier Tier) selection {
		return selection{packages: in[tier], flags: []string{"-run=" + strings.Join(names[tier], "|")}}
	}
	switch tier {
	case Main:
		others := slices.Concat(names[More], names[Long], []string{"^$"})
		return []selection{{packages: rest, flags: []string{"-skip=" + strings.Join(others, "|")}}}
	case More:
		sample := run(Long)
		sample.env = sampleVar + "=" + os.Getenv(sampleVar)
		return []selection{run(More), sample, {packages: whole}}
	default:
		return []selection{run(Long)}
	}
}
