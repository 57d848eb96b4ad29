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

// What others can change is package owndir's to say.
func TestIs_RefusesADirectoryThatOthersCanChange(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: the directory of builders is root's")
	}
	dir := filepath.Join(t.TempDir(), "outrider", "builders")
	must.NoError(t, Declare(dir, 1234))
	must.NoError(t, os.Chown(dir, 65534, 65534))
	if _, err := Is(dir, 4321); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("the error is %v", err)
	}
	test.Error(t, Declare(dir, 4321), test.Sprint("it is used"))
}
