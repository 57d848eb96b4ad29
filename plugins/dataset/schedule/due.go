// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schedule

import (
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// stamp is the form of the time in a snapshot's name, in UTC.
const stamp = "20060102T150405Z"

// Due returns the names of the snapshots that are to be made now: one for each rule that has
// none of the period that now is in, however many were missed. A volume gets its first ones
// when a period begins, and so has something in it.
func Due(rules []policy.Rule, created time.Time, have []engine.Snapshot, now time.Time) (names []string) {
	for _, r := range rules {
		last := created
		for _, s := range have {
			if at, ok := madeBy(r, s.Name); ok && at.After(last) {
				last = at
			}
		}
		if last.Before(start(r, now)) {
			names = append(names, r.Name+"-"+now.UTC().Format(stamp))
		}
	}
	return names
}

// Surplus returns the snapshots of these rules that are more than they keep, oldest first.
// What a person has made is never among them, nor what a rule made that is no longer there.
func Surplus(rules []policy.Rule, have []engine.Snapshot) (names []string) {
	for _, r := range rules {
		var own []string
		for _, s := range have {
			if _, ok := madeBy(r, s.Name); ok {
				own = append(own, s.Name)
			}
		}
		slices.Sort(own) // the time is in the name
		names = append(names, own[:max(0, len(own)-r.Keep)]...)
	}
	return names
}

// Reserved reports whether a snapshot of this name would be taken for one of a schedule.
func Reserved(name string) bool {
	_, ok := made(name)
	return ok
}

// made returns when a snapshot was made by a schedule.
func made(name string) (time.Time, bool) {
	rule, at, _ := strings.Cut(name, "-")
	if rules, err := policy.ParseSchedule(rule + "=1"); err != nil || len(rules) == 0 {
		return time.Time{}, false
	}
	t, err := time.Parse(stamp, at)
	return t, err == nil
}

func madeBy(r policy.Rule, name string) (time.Time, bool) {
	if !strings.HasPrefix(name, r.Name+"-") {
		return time.Time{}, false
	}
	return made(name)
}

// start is when the period of a rule began: the hour, the day (UTC), the week (Monday), the
// month.
func start(r policy.Rule, now time.Time) time.Time {
	now = now.UTC()
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	switch r.Name {
	case "hourly":
		return now.Truncate(time.Hour)
	case "weekly":
		return day.AddDate(0, 0, -int(now.Weekday()+6)%7)
	case "monthly":
		return day.AddDate(0, 0, 1-now.Day())
	}
	return day
}

// next is when a rule's period ends, the first of all.
func next(rules []policy.Rule, now time.Time) time.Time {
	var first time.Time
	for _, r := range rules {
		end := start(r, now).Add(r.Every)
		if r.Name == "monthly" {
			end = start(r, now).AddDate(0, 1, 0)
		}
		if first.IsZero() || end.Before(first) {
			first = end
		}
	}
	return first
}
