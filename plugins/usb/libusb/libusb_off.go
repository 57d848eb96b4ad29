// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !cgo

package libusb

// Available says whether this binary has libusb.
const Available = false

// Scan has nobody to ask.
func (l *Lister) Scan() ([]Device, error) { return nil, ErrUnavailable }
