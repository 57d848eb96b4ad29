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

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/outrider-dev/outrider/lab/vm"
	"github.com/outrider-dev/outrider/lab/vm/gadget"
)

func TestMain(m *testing.M) { os.Exit(vm.Main(m, vm.Options{Memory: 512})) }

func plug(t *testing.T, name string, port int, d gadget.Device) *gadget.Gadget {
	t.Helper()
	if err := gadget.Load(2); err != nil {
		t.Fatal(err)
	}
	g, err := gadget.New(name, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := g.Plug(port); err != nil {
		t.Fatal(err)
	}
	return g
}

// await returns the only path that matches, once there is one.
func await(t *testing.T, glob string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		found, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 1 {
			return found[0]
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %q after a minute", glob, found)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// devices are the plugged devices in sysfs, without the buses' root hubs and interfaces.
func devices(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/sys/bus/usb/devices/*-*")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(p string) bool { return strings.Contains(p, ":") })
}

func TestGadget_IsAsDescribedAndPassesBytes(t *testing.T) {
	g := plug(t, "stick", 0, gadget.Device{
		Vendor: 0x1d6b, Product: 0x0104, Serial: "A1", Manufacturer: "Outrider", Name: "Stick",
		Functions: []gadget.Function{gadget.ACM(), gadget.Keyboard()},
	})
	tty := await(t, "/dev/ttyACM*")
	await(t, "/dev/hidraw*")
	dev := devices(t)
	if len(dev) != 1 {
		t.Fatalf("devices: %q", dev)
	}
	for file, want := range map[string]string{
		"idVendor": "1d6b", "idProduct": "0104", "serial": "A1", "manufacturer": "Outrider", "product": "Stick",
	} {
		if got := read(t, filepath.Join(dev[0], file)); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	if len(g.Far()) != 1 {
		t.Fatalf("the other ends: %q", g.Far())
	}
	near, far := raw(t, tty), raw(t, g.Far()[0])
	for _, d := range [][2]*os.File{{near, far}, {far, near}} {
		if _, err := d[0].WriteString("hello"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		d[1].SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(d[1], b); err != nil || !bytes.Equal(b, []byte("hello")) {
			t.Errorf("%s says %q, %v", d[1].Name(), b, err)
		}
	}
}

// raw opens a terminal that changes nothing in what goes through it.
func raw(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c, err := f.SyscallConn() // Fd() would make it block
	if err != nil {
		t.Fatal(err)
	}
	if cerr := c.Control(func(fd uintptr) { _, err = term.MakeRaw(int(fd)) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return f
}

func TestGadget_TwoAlikeHaveTwoPorts(t *testing.T) {
	for i := range 2 {
		plug(t, fmt.Sprintf("twin%d", i), i, gadget.Device{
			Vendor: 0x1d6b, Product: 0x0104, Functions: []gadget.Function{gadget.ACM()},
		})
	}
	await(t, "/dev/ttyACM0")
	await(t, "/dev/ttyACM1")
	dev := devices(t)
	if len(dev) != 2 {
		t.Fatalf("devices: %q", dev)
	}
	for _, d := range dev {
		if _, err := os.Stat(filepath.Join(d, "serial")); !os.IsNotExist(err) {
			t.Errorf("%s has a serial: %v", d, err)
		}
	}
}

func TestGadget_ComesBackWhereItWas(t *testing.T) {
	g := plug(t, "again", 1, gadget.Device{Vendor: 0x1d6b, Product: 0x0104, Functions: []gadget.Function{gadget.ACM()}})
	await(t, "/dev/ttyACM*")
	before := devices(t)
	for range 3 {
		if err := g.Unplug(); err != nil {
			t.Fatal(err)
		}
		if g.Plugged() {
			t.Error("plugged after unplugging")
		}
		for end := time.Now().Add(time.Minute); len(devices(t)) > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("still there: %q", devices(t))
			}
		}
		if err := g.Plug(1); err != nil {
			t.Fatal(err)
		}
		await(t, "/dev/ttyACM*")
		if now := devices(t); !slices.Equal(now, before) {
			t.Errorf("it was %q and is %q", before, now)
		}
	}
}

func TestGadget_CloseLeavesNothing(t *testing.T) {
	g := plug(t, "gone", 0, gadget.Device{Vendor: 0x1d6b, Product: 0x0104,
		Functions: []gadget.Function{gadget.ACM(), gadget.Keyboard()}})
	other, err := gadget.Open("gone")
	if err != nil || !slices.Equal(other.Far(), g.Far()) {
		t.Fatalf("opened again: %v, %v", other, err)
	}
	for range 2 { // the second has nothing to do
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir("/sys/kernel/config/usb_gadget"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := gadget.Open("gone"); err == nil {
		t.Error("it can be opened")
	}
}

func TestGadget_RefusesABadDevice(t *testing.T) {
	if err := gadget.Load(2); err != nil {
		t.Fatal(err)
	}
	if _, err := gadget.New("none", gadget.Device{}); err == nil || !strings.Contains(err.Error(), "no function") {
		t.Errorf("without a function: %v", err)
	}
	if _, err := gadget.New("bad", gadget.Device{Functions: []gadget.Function{gadget.Storage("/nowhere")}}); err == nil {
		t.Error("a disk that is not there")
	}
	if left, err := os.ReadDir("/sys/kernel/config/usb_gadget"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	g, err := gadget.New("lost", gadget.Device{Functions: []gadget.Function{gadget.ACM()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Plug(9); err == nil || !strings.Contains(err.Error(), "no port 9") {
		t.Errorf("plugged into a port that is not there: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if err := gadget.Load(9); err == nil {
		t.Error("ports that are not there")
	}
}
