// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package builders

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func is(t *testing.T, dir string, id uint32) bool {
	t.Helper()
	yes, err := Is(dir, id)
	test.NoError(t, err)
	return yes
}

func TestReserved_OverlapsNoOtherRange(t *testing.T) {
	for name, r := range map[string][2]uint32{
		"Nomad's dynamic users": {80000, 89999}, "systemd's users": {60001, 60513}, "systemd's dynamic users": {61184, 65519},
		"nobody": {65534, 65534}, "subordinate ids": {100000, 1<<32 - 2}, "accounts of useradd": {1000, 60000}, "root": {0,
			0},
	} {
		for _, id := range r {
			test.False(t, Reserved(id), test.Sprintf("%s: %d", name, id))
		}
	}
	for id, want := range map[uint32]bool{79899: false, 79900: true, 79950: true, 79999: true, 80000: false} {
		must.Eq(t, want, Reserved(id), must.Sprintf("%d", id))
		test.Eq(t, want, is(t, filepath.Join(t.TempDir(), "none"), id), test.Sprintf("%d", id))
	}
}

func TestDeclare_ReservesForEveryDriver(t *testing.T) {
	testsupport.NeedRoot(t) // the directory of builders is root's
	dir := filepath.Join(t.TempDir(), "outrider", "builders")
	test.False(t, is(t, dir, 1234), test.Sprint("it is one before it was declared"))
	for range 2 { // as each start of the plugin does it
		must.NoError(t, Declare(dir, 1234, 1235, First))
	}
	for id, want := range map[uint32]bool{1234: true, 1235: true, 1236: false, First: true} {
		test.Eq(t, want, is(t, dir, id), test.Sprintf("%d", id))
	}
	names, err := os.ReadDir(dir)
	must.NoError(t, err, must.Sprint("noted are"))
	test.SliceLen(t, 2, names, test.Sprint("noted are"))
}

func TestIs_RefusesADirectoryThatOthersCanChange(t *testing.T) {
	testsupport.NeedRoot(t) // the directory of builders is root's
	for name, spoil := range map[string]func(dir string) error{
		"of another user":       func(dir string) error { return os.Chown(dir, 65534, 65534) },
		"below another user's":  func(dir string) error { return os.Chown(filepath.Dir(dir), 65534, 65534) },
		"that others may write": func(dir string) error { return os.Chmod(dir, 0o777) },
		"that is sticky":        func(dir string) error { return os.Chmod(dir, 0o777|os.ModeSticky) },
		"below one for a group": func(dir string) error { return os.Chmod(filepath.Dir(dir), 0o770) },
		"that is another user's link": func(dir string) error {
			return swap(dir, func() error { return linkOfAnother(filepath.Dir(filepath.Dir(dir)), dir) })
		},
		"that is a plain file": func(dir string) error {
			return swap(dir, func() error {
				return os.WriteFile(dir, nil, 0o600)
			})
		},
		"below another user's link": func(dir string) error { return moveBehindLink(filepath.Dir(dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "outrider", "builders")
			must.NoError(t, Declare(dir, 1234))
			must.NoError(t, spoil(dir))
			if _, err := Is(dir, 4321); err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %v", err)
			}
			test.Error(t, Declare(dir, 4321), test.Sprint("it is used"))
		})
	}
}

func swap(dir string, f func() error) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return f()
}

func moveBehindLink(dir string) error {
	if err := os.Rename(dir, dir+".real"); err != nil {
		return err
	}
	return linkOfAnother(dir+".real", dir)
}

func linkOfAnother(target, link string) error {
	if err := os.Symlink(target, link); err != nil {
		return err
	}
	return os.Lchown(link, 65534, 65534)
}
