// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rule is one entry of a schedule: a snapshot each period, of which the newest are kept.
type Rule struct {
	Name  string // "hourly"
	Every time.Duration
	Keep  int
}

var periods = map[string]time.Duration{
	"hourly": time.Hour, "daily": 24 * time.Hour, "weekly": 7 * 24 * time.Hour, "monthly": 30 * 24 * time.Hour,
}

// maxKeep bounds what one volume costs: each snapshot is one more thing to list.
const maxKeep = 1000

// ParseSchedule reads "hourly=24,daily=7", the shortest period first. Empty is no schedule.
func ParseSchedule(text string) ([]Rule, error) {
	if text == "" {
		return nil, nil
	}
	var rules []Rule
	for _, entry := range strings.Split(text, ",") {
		name, count, _ := strings.Cut(entry, "=")
		name = strings.TrimSpace(name)
		every, known := periods[name]
		keep, err := strconv.Atoi(strings.TrimSpace(count))
		if !known || err != nil || keep < 1 || keep > maxKeep {
			return nil, fmt.Errorf("%q is not a schedule: use hourly, daily, weekly or monthly, each with the number of "+
				"snapshots to keep (1 to %d), such as \"hourly=24,daily=7\"", text, maxKeep)
		}
		if slices.ContainsFunc(rules, func(r Rule) bool { return r.Name == name }) {
			return nil, fmt.Errorf("%q has %s twice: write it once", text, name)
		}
		rules = append(rules, Rule{name, every, keep})
	}
	slices.SortFunc(rules, func(a, b Rule) int { return cmp.Compare(a.Every, b.Every) })
	return rules, nil
}
