// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package account looks up the user and the groups of a task in the account databases of this host.
package account

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// DynamicPrefix is the start of the name of a user that Nomad allocates to a single task. The rest of the name is a
// number, which is both the user id and the group id (Nomad's helper/users/dynamic).
const DynamicPrefix = "nomad-"

// Account is a task's user. Name and Home are the values of USER and HOME in the task's environment.
type Account struct {
	task.User
	Name, Home string
}

// Resolve looks up the user and the groups of a task. The user field of a job contains a user's name or id; if ":group"
// follows, it replaces the user's primary group. The groups in extra become additional supplementary groups. If field
// names no user, Resolve takes this process's user. If both parameters are empty, it returns nil.
func Resolve(field string, extra []string) (*Account, error) {
	if field == "" && len(extra) == 0 {
		return nil, nil
	}
	name, group, hasGroup := strings.Cut(field, ":")
	if name == "" {
		name = strconv.Itoa(os.Geteuid())
	}
	u, err := lookupUser(name)
	if err != nil {
		return nil, err
	}
	a := &Account{Name: u.Username, Home: u.HomeDir}
	if a.UID, err = parseID(u.Uid); err != nil {
		return nil, err
	}
	if a.GID, err = parseID(u.Gid); err != nil {
		return nil, err
	}
	if hasGroup {
		if a.GID, err = lookupGroup(group); err != nil {
			return nil, err
		}
	}
	may := maySetGroups()
	switch {
	case !may: // the task keeps the agent's groups
		if a.Groups, err = OwnGroups(); err != nil {
			return nil, err
		}
	case u.Username != "": // an id without an account belongs to no groups
		if a.Groups, err = groupsOf(u); err != nil {
			return nil, fmt.Errorf("failed to look up the groups of user %q: %w", name, err)
		}
	}
	for _, g := range extra {
		gid, err := lookupGroup(g)
		if err != nil {
			return nil, err
		}
		switch {
		case slices.Contains(a.Groups, gid):
		case may:
			a.Groups = append(a.Groups, gid)
		case gid != a.GID:
			return nil, fmt.Errorf("group %q can't be given to the task: the agent is not a member of the group "+
				"and can't set groups; run the agent as root", g)
		}
	}
	return a, nil
}

// maySetGroups reports whether this process may start tasks with groups to which it does not itself belong.
var maySetGroups = sync.OnceValue(func() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if unix.Capget(&hdr, &caps[0]) != nil || caps[0].Effective&(1<<unix.CAP_SETGID) == 0 {
		return false
	}
	policy, err := os.ReadFile("/proc/self/setgroups") // "deny" in some user namespaces: user_namespaces(7)
	return err != nil || string(bytes.TrimSpace(policy)) != "deny"
})

// OwnGroups returns this process's supplementary groups.
func OwnGroups() (groups []uint32, err error) {
	own, err := os.Getgroups()
	for _, g := range own {
		groups = append(groups, uint32(g))
	}
	return groups, err
}

// lookupUser finds an account in /etc/passwd or, through getent(1), in the name service switch, which a static binary
// cannot query. It also returns a user for an id without an account, and for a dynamic user of Nomad.
func lookupUser(name string) (*user.User, error) {
	if err := checkNumber("user", name); err != nil {
		return nil, err
	}
	id, numeric := parseID(name)
	var u *user.User
	var err error
	if numeric == nil {
		u, err = user.LookupId(name)
	} else {
		u, err = user.Lookup(name)
	}
	if err == nil {
		return u, nil
	}
	if f := getent("passwd", name); len(f) >= 6 && (f[0] == name || numeric == nil && f[2] == name) {
		return &user.User{Username: f[0], Uid: f[2], Gid: f[3], HomeDir: f[5]}, nil
	}
	if numeric != nil {
		id, numeric = parseID(strings.TrimPrefix(name, DynamicPrefix))
	}
	if numeric == nil { // a process can run under any id, even one without an account
		text := strconv.FormatUint(uint64(id), 10)
		return &user.User{Uid: text, Gid: text, HomeDir: "/"}, nil
	}
	return nil, fmt.Errorf("user %q does not exist on this node", name)
}

func lookupGroup(name string) (uint32, error) {
	if err := checkNumber("group", name); err != nil {
		return 0, err
	}
	if id, err := parseID(name); err == nil {
		return id, nil
	}
	if g, err := user.LookupGroup(name); err == nil {
		return parseID(g.Gid)
	}
	if f := getent("group", name); len(f) >= 3 && f[0] == name {
		return parseID(f[2])
	}
	return 0, fmt.Errorf("group %q does not exist on this node", name)
}

func groupsOf(u *user.User) ([]uint32, error) {
	ids, err := u.GroupIds()
	if err != nil {
		return nil, err
	}
	if f := getentInitgroups(u.Username); f != nil {
		ids = append(ids, f...)
	}
	var groups []uint32
	for _, s := range ids {
		id, err := parseID(s)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(groups, id) {
			groups = append(groups, id)
		}
	}
	return groups, nil
}

// getent returns the fields of an entry, or nil if the entry does not exist.
func getent(database, key string) []string {
	line, _, _ := strings.Cut(runGetent(database, key), "\n")
	if line == "" {
		return nil
	}
	return strings.Split(line, ":")
}

// getentInitgroups returns the groups that the name service lists for a user, or nil for a user in /etc/passwd:
// GroupIds finds such a user's groups in /etc/group.
func getentInitgroups(name string) []string {
	if _, err := user.Lookup(name); err == nil {
		return nil
	}
	rest, found := strings.CutPrefix(runGetent("initgroups", name), name)
	f := strings.Fields(rest)
	if !found || len(f) == 0 || !unicode.IsSpace(rune(rest[0])) {
		return nil
	}
	return f
}

func runGetent(database, key string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "getent", database, "--", key).Output()
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(out))
}

func parseID(s string) (uint32, error) {
	v, err := ParseDecimal(s)
	if err != nil || v == 1<<32-1 {
		return 0, errors.New(strconv.Quote(s) + " is not a user or group id")
	}
	return v, nil
}

// ParseDecimal parses a number as the kernel prints it: decimal digits without sign, spaces or leading zeros.
func ParseDecimal(s string) (uint32, error) {
	v, err := strconv.ParseUint(s, 10, 32)
	if err == nil && strconv.FormatUint(v, 10) != s {
		err = strconv.ErrSyntax
	}
	return uint32(v), err
}

// checkNumber rejects text that looks like a number but is not a valid id. getent(1) would accept "4294967296", "+0"
// and " 0", and parse each as 0, the id of root, with strtoul(3).
func checkNumber(kind, s string) error {
	digits := strings.TrimLeft(strings.TrimSpace(s), "+-")
	_, err := strconv.ParseUint(digits, 0, 64) // base 0 also recognizes prefixes such as 0x
	number := err == nil || errors.Is(err, strconv.ErrRange) || digits != "" && strings.Trim(digits, "0123456789") == ""
	if _, err := parseID(s); err == nil || !number {
		return nil
	}
	return fmt.Errorf("%s %q is neither a name nor an id: an id is a decimal number from 0 to 4294967294, "+
		"without sign, spaces or leading zeros", kind, s)
}
