// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestClass_HasName(t *testing.T) {
	for class, want := range map[Class]string{
		{}: "per-interface", {3, 1, 2}: "human interface device", {0xff, 0, 0}: "vendor-specific", {0x4b, 0, 0}: "class 4b",
	} {
		test.Eq(t, want, class.Name(), test.Sprint(class))
	}
}

func TestID_RoundTrips(t *testing.T) {
	for _, want := range []ID{{0x10c4, 0xea60}, {0x0403, 1}} {
		got, err := ParseID(want.String())
		must.NoError(t, err)
		test.EqOp(t, want, got)
	}
	for _, wrong := range []string{"", "10c4", "10c4:ea6", "10c4:ea600", "0x10c4:0xea60", "10c4:*"} {
		got, err := ParseID(wrong)
		test.Error(t, err, test.Sprintf("%q was read as %s", wrong, got))
	}
}
