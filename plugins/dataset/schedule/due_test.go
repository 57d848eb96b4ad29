// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schedule

import (
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

func at(t *testing.T, text string) time.Time {
	when, err := time.Parse("2006-01-02 15:04", text)
	must.NoError(t, err)
	return when
}

func rules(t *testing.T, text string) []policy.Rule {
	r, err := policy.ParseSchedule(text)
	must.NoError(t, err)
	return r
}

func named(names ...string) (all []engine.Snapshot) {
	for _, n := range names {
		all = append(all, engine.Snapshot{Name: n})
	}
	return all
}

func TestDue_MakesOneOfEachPeriod(t *testing.T) {
	for name, c := range map[string]struct {
		schedule, created, now string
		have, want             []string
	}{
		"a new volume has none yet": {"hourly=2,daily=1", "2026-05-06 10:10", "2026-05-06 10:59", nil, nil},
		"its first is that of the next hour": {"hourly=2,daily=1", "2026-05-06 10:10", "2026-05-06 11:00", nil,
			[]string{"hourly-20260506T110000Z"}},
		"the hour has one": {"hourly=2", "2026-05-01 10:10", "2026-05-06 11:59", []string{"hourly-20260506T110003Z"}, nil},
		"one for many that were missed": {"hourly=9", "2026-05-01 10:10", "2026-05-06 11:07",
			[]string{"hourly-20260503T110003Z"},
			[]string{"hourly-20260506T110700Z"}},
		"each rule has its own": {"hourly=9,daily=2,weekly=2,monthly=1", "2026-01-01 10:10", "2026-06-01 00:00", // a Monday
			[]string{"hourly-20260531T230000Z", "daily-20260531T000000Z", "weekly-20260525T000000Z", "monthly-20260501T000000Z"},
			[]string{"hourly-20260601T000000Z", "daily-20260601T000000Z", "weekly-20260601T000000Z",
				"monthly-20260601T000000Z"}},
		"a Sunday is of the week before": {"weekly=2", "2026-01-01 10:10", "2026-05-31 23:59",
			[]string{"weekly-20260525T000000Z"}, nil},
		"a person's do not count": {"hourly=1", "2026-05-01 10:10", "2026-05-06 11:00", []string{"hourly-now", "before"},
			[]string{"hourly-20260506T110000Z"}},
		"a clock that was wrong makes none twice": {"hourly=1", "2026-05-01 10:10", "2026-05-06 11:00",
			[]string{"hourly-20270101T000000Z"}, nil},
	} {
		got := Due(rules(t, c.schedule), at(t, c.created), named(c.have...), at(t, c.now))
		test.Eq(t, c.want, got, test.Sprint(name))
	}
}

func TestSurplus_KeepsTheNewestAndWhatAPersonMade(t *testing.T) {
	have := named("before", "hourly-20260506T090000Z", "daily-20260505T000000Z", "hourly-20260506T100000Z",
		"weekly-20200101T000000Z",
		"hourly-20260506T110000Z", "daily-20260506T000000Z", "hourly-mine")
	test.Eq(t, []string{"hourly-20260506T090000Z", "daily-20260505T000000Z"}, Surplus(rules(t, "hourly=2,daily=1"), have))
	test.Eq(t, nil, Surplus(rules(t, "hourly=3"), have))
}

func TestNext_IsTheFirstEndOfAPeriod(t *testing.T) {
	for schedule, want := range map[string]string{
		"hourly=1,monthly=1": "2026-05-31 23:00", "daily=1,weekly=1": "2026-06-01 00:00", "weekly=1": "2026-06-01 00:00",
		"monthly=1": "2026-06-01 00:00",
	} {
		test.Eq(t, at(t, want), next(rules(t, schedule), at(t, "2026-05-31 22:30")), test.Sprint(schedule))
	}
}
