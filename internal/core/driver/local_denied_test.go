// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/account"
	"github.com/outrider-dev/outrider/internal/core/task"
)

func TestDeniedIDs_IncludeEveryIDOfARange(t *testing.T) {
	d, err := newDenied(PluginOptions{DeniedHostUIDs: "5,100-199, 4294967290-4294967295", DeniedHostGIDs: "7, 20-29"})
	must.NoError(t, err)
	user := func(uid, gid uint32, groups ...uint32) *task.User {
		return &task.User{UID: uid, GID: gid, Groups: groups}
	}
	for _, u := range []*task.User{
		user(5, 1), user(100, 1), user(150, 1), user(199, 1), user(4294967290, 1), user(4294967294, 1),
		user(1, 7), user(1, 20), user(1, 29), user(1, 1, 7), user(1, 1, 1, 29), user(1, 1, 20, 1), user(5, 7, 7),
	} {
		test.ErrorContains(t, d.check(u), "is not allowed on this node", test.Sprintf("%+v", u))
	}
	for _, u := range []*task.User{
		user(4, 6), user(6, 8), user(99, 19), user(200, 30), user(4294967289, 5), user(7, 5, 100, 199), user(0, 0, 0),
	} {
		test.NoError(t, d.check(u), test.Sprintf("%+v", u))
	}
	for _, only := range []denied{{uids: d.uids}, {gids: d.gids}} { // one of the two lists is enough
		test.Error(t, only.check(user(5, 7)), test.Sprintf("%+v passes", only))
	}
	test.NoError(t, (denied{}).check(nil), test.Sprint("nothing is denied"))
}

func TestDeniedIDs_RefuseMalformedRanges(t *testing.T) {
	for _, list := range []string{
		"010", "0-010", "+5", "-5", "5-", "-", "1-2-3", "4294967296", "0-4294967296", "0x10", "1_0", "2-1", "5;6", "5 6",
		"root", "0--1",
	} {
		d, err := newDenied(PluginOptions{DeniedHostUIDs: list})
		test.ErrorContains(t, err, "denied_host_uids has ", test.Sprintf("user ids %q: got %+v", list, d))
		d, err = newDenied(PluginOptions{DeniedHostGIDs: list})
		test.ErrorContains(t, err, "denied_host_gids has ", test.Sprintf("group ids %q: got %+v", list, d))
	}
	for _, list := range []string{"", " ", ",", "1,", " 1 , 2 - 3 ,"} {
		_, err := newDenied(PluginOptions{DeniedHostUIDs: list})
		test.NoError(t, err, test.Sprint(list))
	}
}

func TestNonRootAgent_ItsOwnGroupsCanBeDenied(t *testing.T) {
	if !withoutRoot(t, "7", "9") {
		return
	}
	for _, job := range []struct {
		user  string
		extra []string
	}{{"", nil}, {"65534", nil}, {"nobody", nil}, {"", []string{"9"}}} {
		for gid, allowed := range map[string]bool{"7": false, "9": false, "65534": false, "8": true} {
			d, err := newDenied(PluginOptions{DeniedHostGIDs: gid})
			must.NoError(t, err)
			who, err := account.Resolve(job.user, job.extra)
			must.NoError(t, err)
			var u *task.User
			if who != nil {
				u = &who.User
			}
			err = d.check(u)
			test.Eq(t, allowed, (err == nil), test.Sprintf("%+v, denied %s: got %v", job, gid, err))
		}
	}
	d, err := newDenied(PluginOptions{DeniedHostUIDs: "65534"})
	must.NoError(t, err)
	test.Error(t, d.check(nil), test.Sprint("the agent's own user passes"))
}

func TestNonRootAgent_TasksHaveItsGroups(t *testing.T) {
	if !withoutRoot(t, "7", "9") {
		return
	}
	a := start(t, nil)
	for _, c := range []struct{ user, options string }{
		{"", ""}, {"65534", ""}, {"nobody", ""}, {"", `groups = ["9"]`}, {"nobody:65534", `groups = ["7", "65534"]`},
	} {
		out, r := a.result(a.shell("id -u; id -G", c.options, func(cfg *drivers.TaskConfig) { cfg.User = c.user }))
		must.Eq(t, 0, r.ExitCode, must.Sprintf("user %q, %s: got %q, %+v", c.user, c.options, out, r))
		test.Eq(t, "65534\n65534 7 9\n", out,
			test.Sprintf("user %q, %s: got %q, %+v", c.user, c.options, out, r))
	}
	for options, want := range map[string]string{
		`groups = ["8"]`:      `group "8" can't be given to the task`,
		`groups = ["daemon"]`: `group "daemon" can't be given to the task`,
	} {
		_, _, err := a.StartTask(a.shell("exit 0", options))
		test.ErrorContains(t, err, want, test.Sprint(options))
	}
}
