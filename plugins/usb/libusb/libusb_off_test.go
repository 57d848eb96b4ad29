//go:build !cgo

package libusb

import "testing"

func TestABinaryWithoutLibusbSaysSo(t *testing.T) {
	if devices, err := new(Lister).Scan(); devices != nil || err != ErrUnavailable || Available {
		t.Errorf("got %v, %v", devices, err)
	}
}
