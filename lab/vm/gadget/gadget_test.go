// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package gadget_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/vm"
	"github.com/outrider-dev/outrider/lab/vm/gadget"
)

func TestMain(m *testing.M) { os.Exit(vm.Main(m, vm.Options{Memory: 512})) }

func plug(t *testing.T, name string, port int, d gadget.Device) *gadget.Gadget {
	t.Helper()
	must.NoError(t, gadget.Load(2))
	g, err := gadget.New(name, d)
	must.NoError(t, err)
	t.Cleanup(func() {
		test.NoError(t, g.Close())
	})
	must.NoError(t, g.Plug(port))
	return g
}

// await waits until exactly one path matches, and returns it.
func await(t *testing.T, glob string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		found, err := filepath.Glob(glob)
		must.NoError(t, err)
		if len(found) == 1 {
			return found[0]
		}
		must.False(t, time.Now().After(end), must.Sprintf("%s: %q after a minute", glob, found))
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must.NoError(t, err)
	return strings.TrimSpace(string(b))
}

// devices returns the plugged devices in sysfs, without root hubs and interfaces.
func devices(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/sys/bus/usb/devices/*-*")
	must.NoError(t, err)
	return slices.DeleteFunc(all, func(p string) bool { return strings.Contains(p, ":") })
}

func TestGadget_MatchesItsDescriptionAndPassesBytes(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	g := plug(t, "stick", 0, gadget.Device{
		Vendor: 0x1d6b, Product: 0x0104, Serial: "A1", Manufacturer: "Outrider", Name: "Stick",
		Functions: []gadget.Function{gadget.ACM(), gadget.Keyboard()},
	})
	tty := await(t, "/dev/ttyACM*")
	await(t, "/dev/hidraw*")
	dev := devices(t)
	must.SliceLen(t, 1, dev, must.Sprint("devices"))
	for file, want := range map[string]string{
		"idVendor": "1d6b", "idProduct": "0104", "serial": "A1", "manufacturer": "Outrider", "product": "Stick",
	} {
		test.Eq(t, want, read(t, filepath.Join(dev[0], file)), test.Sprint(file))
	}
	must.SliceLen(t, 1, g.Far(), must.Sprint("the other ends"))
	near, err := gadget.Open(tty)
	must.NoError(t, err)
	defer near.Close()
	far, err := gadget.Open(g.Far()[0])
	must.NoError(t, err)
	defer far.Close()
	for _, d := range [][2]*os.File{{near, far}, {far, near}} {
		_, err := d[0].WriteString("hello")
		must.NoError(t, err)
		b := make([]byte, 5)
		d[1].SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(d[1], b); err != nil || !bytes.Equal(b, []byte("hello")) {
			t.Errorf("%s has %q, %v", d[1].Name(), b, err)
		}
	}
}

func TestGadget_IdenticalDevicesHaveDifferentPorts(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	for i := range 2 {
		plug(t, fmt.Sprintf("twin%d", i), i, gadget.Device{
			Vendor: 0x1d6b, Product: 0x0104, Functions: []gadget.Function{gadget.ACM()},
		})
	}
	await(t, "/dev/ttyACM0")
	await(t, "/dev/ttyACM1")
	dev := devices(t)
	must.SliceLen(t, 2, dev, must.Sprint("devices"))
	for _, d := range dev {
		_, err := os.Stat(filepath.Join(d, "serial"))
		test.True(t, os.IsNotExist(err), test.Sprintf("%s has a serial: %v", d, err))
	}
}

func TestGadget_ReturnsToItsPort(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	g := plug(t, "again", 1, gadget.Device{Vendor: 0x1d6b, Product: 0x0104, Functions: []gadget.Function{gadget.ACM()}})
	await(t, "/dev/ttyACM*")
	before := devices(t)
	for range 3 {
		must.NoError(t, g.Unplug())
		test.False(t, g.Plugged(), test.Sprint("plugged after unplugging"))
		for end := time.Now().Add(time.Minute); len(devices(t)) > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("still there: %q", devices(t))
			}
		}
		must.NoError(t, g.Plug(1))
		await(t, "/dev/ttyACM*")
		test.SliceEqOp(t, before, devices(t), test.Sprintf("it was %q and", before))
	}
}

func TestGadget_CloseRemovesTheDevice(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	g := plug(t, "gone", 0, gadget.Device{Vendor: 0x1d6b, Product: 0x0104,
		Functions: []gadget.Function{gadget.ACM(), gadget.Keyboard()}})
	for range 2 { // a second Close is not an error
		must.NoError(t, g.Close())
	}
	left, err := os.ReadDir("/sys/kernel/config/usb_gadget")
	must.NoError(t, err, must.Sprint("leftovers"))
	test.SliceEmpty(t, left, test.Sprint("leftovers"))
}

func TestGadget_RefusesABadDevice(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	must.NoError(t, gadget.Load(2))
	if _, err := gadget.New("none", gadget.Device{}); err == nil || !strings.Contains(err.Error(), "no function") {
		t.Errorf("without a function: %v", err)
	}
	if left, err := os.ReadDir("/sys/kernel/config/usb_gadget"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	g, err := gadget.New("lost", gadget.Device{Functions: []gadget.Function{gadget.ACM()}})
	must.NoError(t, err)
	test.ErrorContains(t, g.Plug(9), "no port 9", test.Sprint("plugged into a missing port"))
	test.NoError(t, g.Close())
	test.Error(t, gadget.Load(9), test.Sprint("more ports than exist"))
}
