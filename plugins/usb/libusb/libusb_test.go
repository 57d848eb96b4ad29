// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build cgo

package libusb

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gousb"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/usbsim"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// If askVar is set, the test binary reads numbers from stdin, one per line. For each, it calls Classes that many times
// and prints an answer as JSON.
const askVar = "OUTRIDER_TEST_LIBUSB"

type answer struct {
	Devices []described // without hubs
	Error   string
	Held    held
}

type described struct {
	Device
	Classes []sysfs.Class
}

// held are the resources that a process holds.
type held struct {
	Descriptors, Goroutines int
	Threads                 []string // names
}

func TestMain(m *testing.M) {
	if os.Getenv(askVar) == "" {
		os.Exit(m.Run())
	}
	log.SetOutput(io.Discard)    // silences gousb
	time.Sleep(time.Millisecond) // opens the runtime's poller before the first count: its descriptors stay open
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var a answer
		var err error
		times := 1
		fmt.Sscan(lines.Text(), &times)
		for range times {
			var classes map[Device][]sysfs.Class
			if classes, err = Classes(); err != nil {
				a.Error = err.Error()
			}
			a.Devices = nil
			for d, all := range classes {
				if !slices.ContainsFunc(all, func(c sysfs.Class) bool { return c.Class == 9 }) {
					a.Devices = append(a.Devices, described{d, all})
				}
			}
		}
		slices.SortFunc(a.Devices, func(x, y described) int {
			return cmp.Or(cmp.Compare(x.Bus, y.Bus), cmp.Compare(x.Address, y.Address))
		})
		a.Held = holds()
		// wait for goroutines and threads, which take a moment to end
		for end := time.Now().Add(time.Minute); (a.Held.Goroutines > 1 || slices.Contains(a.Held.Threads, eventThread)) &&
			time.Now().Before(end); a.Held = holds() {
			time.Sleep(time.Millisecond)
		}
		json.NewEncoder(os.Stdout).Encode(a)
	}
	os.Exit(0)
}

func holds() held {
	h := held{Goroutines: runtime.NumGoroutine()}
	descriptors, _ := os.ReadDir("/proc/self/fd")
	h.Descriptors = len(descriptors)
	tasks, _ := filepath.Glob("/proc/self/task/*/comm")
	for _, t := range tasks {
		name, _ := os.ReadFile(t)
		h.Threads = append(h.Threads, strings.TrimSpace(string(name)))
	}
	slices.Sort(h.Threads)
	return h
}

// asker starts a process with askVar, and returns a function that requests an answer. The process sees root as /, by
// umockdev's preload library. If root is empty, it sees the real machine.
func asker(t *testing.T, root string) (ask func(times int) answer) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), askVar+"=1")
	if root != "" {
		if found, _ := filepath.Glob("/usr/lib*/*/libumockdev-preload.so.0"); len(found) == 0 {
			if found, _ = filepath.Glob("/usr/lib*/libumockdev-preload.so.0"); len(found) == 0 {
				t.Skip("umockdev's preload library is not installed")
			}
		}
		c.Env = append(c.Env, "LD_PRELOAD=libumockdev-preload.so.0", "UMOCKDEV_DIR="+root)
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	in, err := c.StdinPipe()
	must.NoError(t, err)
	out, err := c.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, c.Start())
	t.Cleanup(func() {
		in.Close()
		if err := c.Wait(); err != nil || stderr.Len() > 0 {
			t.Errorf("the process ended with %v and printed %q", err, &stderr)
		}
	})
	answers := json.NewDecoder(out)
	return func(times int) (a answer) {
		t.Helper()
		fmt.Fprintln(in, times)
		if err := answers.Decode(&a); err != nil {
			t.Fatalf("no answer: %v, it printed %q", err, &stderr)
		}
		return a
	}
}

func plug(t *testing.T, dir string, s usbsim.Stick) *usbsim.Plugged {
	t.Helper()
	p, err := usbsim.Plug(dir, s)
	must.NoError(t, err)
	t.Cleanup(func() { p.Unplug() })
	return p
}

func TestClasses_AgreeWithSysfs(t *testing.T) {
	dir := t.TempDir()
	plug(t, dir, usbsim.Stick{Port: "1-1", Serial: "0001"})
	plug(t, dir, usbsim.Stick{Port: "2-1", Functions: []string{"tty", "hidraw"}}) // the same address on another bus
	plug(t, dir, usbsim.Stick{Port: "3-1", ID: "0403:6001", Functions: []string{"hidraw"}})
	for _, where := range []struct{ preload, root string }{{dir, dir}, {"", "/"}} {
		got := asker(t, where.preload)(1)
		must.Eq(t, "", got.Error)
		devices, err := sysfs.Scan(os.DirFS(where.root))
		must.NoError(t, err)
		if where.preload != "" && len(devices) != 3 {
			t.Errorf("got %+v", devices)
		}
		var want []described
		for _, d := range devices {
			want = append(want, described{Device{d.Bus, d.Address, d.ID}, d.Settings})
		}
		test.Eq(t, want, got.Devices, test.Sprintf("sysfs and libusb disagree about %s: got", where.root))
	}
}

func TestClasses_SeesNewDevices(t *testing.T) {
	dir := t.TempDir()
	first := plug(t, dir, usbsim.Stick{})
	ask := asker(t, dir)
	sticks := func() []int {
		var addresses []int
		for _, d := range ask(1).Devices {
			addresses = append(addresses, d.Address)
		}
		return addresses
	}
	test.SliceEqOp(t, []int{4}, sticks(), test.Sprint("first there are"))
	plug(t, dir, usbsim.Stick{Port: "1-2"})
	test.SliceEqOp(t, []int{4, 5}, sticks(), test.Sprint("with another there are"))
	first.Unplug()
	test.SliceEqOp(t, []int{5}, sticks(), test.Sprint("without the first there are"))
	plug(t, dir, usbsim.Stick{})
	test.SliceEqOp(t, []int{5, 6}, sticks(), test.Sprint("with the first again there are"))
}

func TestClasses_ScansLeakNothing(t *testing.T) {
	testsupport.Long(t, "repeats")
	dir := t.TempDir()
	for i := range 3 {
		plug(t, dir, usbsim.Stick{Port: fmt.Sprintf("1-%d", i+1)})
	}
	for name, root := range map[string]string{"an emulated tree": dir, "this machine": ""} {
		t.Run(name, func(t *testing.T) {
			ask := asker(t, root)
			before := ask(50) // by then the runtime has started its own threads
			after := ask(1000)
			t.Logf("%d devices; before %+v, after %+v", len(after.Devices), before.Held, after.Held)
			must.Eq(t, "", before.Error+after.Error, must.Sprint(before.Error, after.Error))
			if root != "" && len(after.Devices) != 3 {
				t.Errorf("got %+v", after.Devices)
			}
			wantNoMore(t, before.Held, after.Held)
		})
	}
}

func wantNoMore(t *testing.T, before, after held) {
	t.Helper()
	must.Eq(t, before.Descriptors, after.Descriptors, must.Sprintf("%+v has become %+v", before, after))
	test.Eq(t, before.Goroutines, after.Goroutines, test.Sprintf("%+v has become %+v", before, after))
	// the runtime may start a few threads at any time
	must.False(t, len(after.Threads) > len(before.Threads)+2,
		must.Sprintf("threads %q have become", before.Threads))
	test.SliceNotContains(t, after.Threads, eventThread, test.Sprintf("threads %q have become", before.Threads))
}

// eventThread is the name of libusb's thread for hotplug events (os/linux_udev.c, os/linux_netlink.c).
const eventThread = "libusb_event"

func TestClasses_OpensNoDevice(t *testing.T) {
	context := gousb.NewContext()
	during := holds()
	// wait for the thread's name, which the thread sets after its start
	for end := time.Now().Add(30 * time.Second); !slices.Contains(during.Threads, eventThread); during = holds() {
		must.False(t, time.Now().After(end),
			must.Sprintf("libusb has no thread %q: %q", eventThread, during.Threads))
	}
	context.Close()
	after := holds()
	// wait for the thread's entry in /proc, which remains for a moment after the thread has ended
	for end := time.Now().Add(30 * time.Second); slices.Contains(after.Threads, eventThread); after = holds() {
		must.False(t, time.Now().After(end), must.Sprintf("libusb's thread still runs: %q", after.Threads))
	}

	dir := t.TempDir()
	p := plug(t, dir, usbsim.Stick{})
	node := filepath.Join(dir, fmt.Sprintf("dev/bus/usb/001/%03d", p.Address))
	opened := opens(t, node)
	got := asker(t, dir)(3)
	must.Eq(t, "", got.Error, must.Sprintf("got %+v", got))
	test.SliceLen(t, 1, got.Devices, test.Sprintf("got %+v", got))
	test.False(t, opened(), test.Sprint("a scan has opened the device"))
	_, err := os.ReadFile(node)
	must.NoError(t, err, must.Sprint("the test would not notice it"))
	test.True(t, opened(), test.Sprint("the test would not notice it"))
}

// opens returns a function that reports whether a file was opened since its last call.
func opens(t *testing.T, path string) func() bool {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_OPEN)
	must.NoError(t, err)
	return func() bool {
		n, err := unix.Read(fd, make([]byte, 4096))
		if err != nil && err != unix.EAGAIN {
			t.Fatal(err)
		}
		return n > 0
	}
}

func TestClasses_ReturnsAnErrorAfterAPanic(t *testing.T) {
	dir := t.TempDir()
	plug(t, dir, usbsim.Stick{})
	// interface 0 occurs twice, each time with setting 0, before and after interface 1. gousb stores no setting for the
	// last descriptor, and panics when it takes the first setting of that descriptor
	file := filepath.Join(dir, "sys/bus/usb/devices/1-1/descriptors")
	whole, err := os.ReadFile(file)
	must.NoError(t, err)
	broken := append(slices.Clone(whole[:18]),
		9, 2, 36, 0, 3, 1, 0, 0x80, 50,
		9, 4, 0, 0, 0, 0xff, 0, 0, 0,
		9, 4, 1, 0, 0, 0xff, 0, 0, 0,
		9, 4, 0, 0, 0, 0xff, 0, 0, 0)
	must.NoError(t, os.WriteFile(file, broken, 0o644))
	got := asker(t, dir)(1)
	must.StrHasPrefix(t, "libusb failed: runtime error: ", got.Error, must.Sprintf("got %+v", got))
	test.Nil(t, got.Devices, test.Sprintf("got %+v", got))
	devices, err := sysfs.Scan(os.DirFS(dir))
	must.NoError(t, err, must.Sprint("sysfs"))
	test.SliceLen(t, 1, devices, test.Sprint("sysfs"))
}
