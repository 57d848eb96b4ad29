//go:build cgo

// Package libusb asks libusb which devices there are.
package libusb

import _ "github.com/google/gousb"
