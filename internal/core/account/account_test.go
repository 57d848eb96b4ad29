// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package account

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestResolveUser_RefusesNumbersThatAreNotIDs(t *testing.T) {
	for _, id := range []string{
		"4294967296", "4294967295", "18446744073709551616", "99999999999999999999999",
		"+0", "-0", "+-0", "-1", " 0", "0 ", "\t0", "0\n", "\v0", "00", "007", "08", "0x0", "0b0", "0o0", "1_0", "\u00a00",
	} {
		for what, resolve := range map[string]func() (*Account, error){
			"user":        func() (*Account, error) { return Resolve(id, nil) },
			"group":       func() (*Account, error) { return Resolve("nobody:"+id, nil) },
			"extra group": func() (*Account, error) { return Resolve("nobody", []string{id}) },
		} {
			a, err := resolve()
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is neither a name nor an id", id)) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %q: got %+v, %v", what, id, a, err)
			}
		}
	}
	a, err := Resolve("4294967294:4294967294", nil)
	must.NoError(t, err, must.Sprintf("the last id: %+v", a))
	must.Eq(t, 4294967294, a.UID, must.Sprintf("the last id: %+v", a))
	test.Eq(t, 4294967294, a.GID, test.Sprintf("the last id: %+v", a))
}

// nameService puts a script into PATH that is run in place of getent(1).
func nameService(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "getent"), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestResolveUser_AcceptsOnlyTheRequestedUser(t *testing.T) {
	needGroups(t)
	nameService(t, `case $1 in
passwd) echo 'root:x:0:0:root:/root:/bin/sh' ;;
group) echo 'root:x:0:' ;;
initgroups) echo 'root 0 27' ;;
esac`)
	for _, user := range []string{"no-such-user", "nobody:no-such-group"} {
		if a, err := Resolve(user, nil); err == nil || !strings.HasSuffix(err.Error(), "does not exist on this node") {
			t.Errorf("user %q: got %+v, %v", user, a, err)
		}
	}
	if a, err := Resolve("nobody", []string{"no-such-group"}); err == nil {
		t.Errorf("extra group: got %+v", a)
	}
	a, err := Resolve("3111222333", nil)
	must.NoError(t, err)
	must.Eq(t, 3111222333, a.UID, must.Sprintf("an id: got %+v", a))
	must.Eq(t, 3111222333, a.GID, must.Sprintf("an id: got %+v", a))
	must.Eq(t, "", a.Name, must.Sprintf("an id: got %+v", a))
	test.SliceEmpty(t, a.Groups, test.Sprintf("an id: got %+v", a))
}

func TestResolveUser_AcceptsOnlyGroupsOfTheRequestedUser(t *testing.T) {
	needGroups(t)
	for answer, want := range map[string][]uint32{
		"ann 5000 27":      {5000, 27},
		"ann":              {5000},
		"anna 5000 27":     {5000},
		"root 0 27":        {5000},
		"ann 5000 27 5000": {5000, 27},
	} {
		nameService(t, `case $1 in
passwd) echo 'ann:x:5000:5000::/home/ann:/bin/sh' ;;
initgroups) echo '`+answer+`' ;;
esac`)
		a, err := Resolve("ann", nil)
		must.NoError(t, err)
		must.Eq(t, 5000, a.UID, must.Sprintf("%q: got %+v, want groups", answer, a))
		must.Eq(t, 5000, a.GID, must.Sprintf("%q: got %+v, want groups", answer, a))
		must.Eq(t, "/home/ann", a.Home, must.Sprintf("%q: got %+v, want groups", answer, a))
		test.SliceEqOp(t, want, a.Groups, test.Sprintf("%q: got %+v, want groups", answer, a))
	}
}

func TestResolveUser_ReadsIDsStrictly(t *testing.T) {
	needGroups(t)
	for _, id := range []string{"+0", "00", "-0", " 0", "4294967296", "4294967295", ""} {
		for what, script := range map[string]string{
			"user id":  "echo 'ann:x:" + id + ":5000::/home/ann:/bin/sh'",
			"group id": "echo 'ann:x:5000:" + id + "::/home/ann:/bin/sh'",
			"group": `case $1 in passwd) echo 'ann:x:5000:5000::/home/ann:/bin/sh' ;; group) echo 'staff2:x:` + id +
				`:' ;; esac`,
		} {
			nameService(t, script)
			a, err := Resolve("ann:staff2", nil)
			test.ErrorContains(t, err, "is not a user or group id", test.Sprintf("%s %q: got %+v", what, id, a))
		}
	}
	for _, id := range []string{"+0", "00", "4294967296"} {
		nameService(t, `case $1 in passwd) echo 'ann:x:5000:5000::/home/ann:/bin/sh' ;; initgroups) echo 'ann `+id+
			`' ;; esac`)
		a, err := Resolve("ann", nil)
		test.Error(t, err, test.Sprintf("a supplementary group %q: got %+v", id, a))
	}
}

func needGroups(t *testing.T) {
	t.Helper()
	testsupport.NeedRoot(t) // without root, a task keeps the groups of the agent
}
