// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !cgo

package libusb

import "testing"

func TestLister_WithoutLibusbIsUnavailable(t *testing.T) {
	if devices, err := new(Lister).Scan(); devices != nil || err != ErrUnavailable || Available {
		t.Errorf("got %v, %v", devices, err)
	}
}
