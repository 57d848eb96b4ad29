// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !cgo

package libusb

import "github.com/outrider-dev/outrider/plugins/usb/sysfs"

// Classes returns no devices, because libusb needs cgo.
func Classes() (map[Device][]sysfs.Class, error) { return nil, nil }
