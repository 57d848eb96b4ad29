// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/ryanuber/go-glob"

	"github.com/outrider-dev/outrider/internal/core/account"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// denied holds the users, groups and variables that the operator denies to tasks.
type denied struct {
	uids, gids []idRange
	env        []string // globs
}

type idRange struct{ first, last uint32 }

func newDenied(o PluginOptions) (d denied, err error) {
	if d.uids, err = parseRanges("denied_host_uids", o.DeniedHostUIDs); err != nil {
		return d, err
	}
	if d.gids, err = parseRanges("denied_host_gids", o.DeniedHostGIDs); err != nil {
		return d, err
	}
	d.env = o.DeniedEnvvars
	return d, nil
}

func parseRanges(option, list string) (ranges []idRange, err error) {
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := account.ParseDecimal(strings.TrimSpace(from))
		last, err2 := account.ParseDecimal(strings.TrimSpace(to))
		if err1 != nil || err2 != nil || first > last {
			return nil, fmt.Errorf("%s has %q, which is neither an id nor a range: use for example \"0\" or \"100-199\"",
				option, part)
		}
		ranges = append(ranges, idRange{first, last})
	}
	return ranges, nil
}

func contains(ranges []idRange, id uint32) bool {
	return slices.ContainsFunc(ranges, func(r idRange) bool { return r.first <= id && id <= r.last })
}

// resolve works like account.Resolve, but also returns an error for a denied user or group.
func (d denied) resolve(field string, groups []string) (*account.Account, error) {
	who, err := account.Resolve(field, groups)
	if err != nil {
		return nil, err
	}
	var u *task.User
	if who != nil {
		u = &who.User
	}
	return who, d.check(u)
}

// check returns an error if the operator denies the user or one of the user's groups. A nil user means the agent's own.
func (d denied) check(u *task.User) error {
	if len(d.uids) == 0 && len(d.gids) == 0 {
		return nil
	}
	u, err := orAgents(u)
	if err != nil {
		return err
	}
	if contains(d.uids, u.UID) {
		return fmt.Errorf("user id %d is not allowed on this node (denied_host_uids): "+
			"run the task as another user", u.UID)
	}
	for _, g := range append([]uint32{u.GID}, u.Groups...) {
		if contains(d.gids, g) {
			return fmt.Errorf("group id %d is not allowed on this node (denied_host_gids): "+
				"choose a user that is not in this group", g)
		}
	}
	return nil
}

// filter returns env without the denied variables.
func (d denied) filter(env map[string]string) map[string]string {
	if len(d.env) == 0 {
		return env
	}
	kept := make(map[string]string, len(env))
	for name, value := range env {
		if !slices.ContainsFunc(d.env, func(pattern string) bool { return glob.Glob(pattern, name) }) {
			kept[name] = value
		}
	}
	return kept
}

// orAgents returns u, or the agent's own user if u is nil.
func orAgents(u *task.User) (*task.User, error) {
	if u != nil {
		return u, nil
	}
	own, err := account.OwnGroups()
	return &task.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Groups: own}, err
}
