// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulation

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/usbsim"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// childVar names a directory. If it is set, the test binary plugs in a stick there, until it is killed.
const childVar = "OUTRIDER_TEST_STICK"

func TestMain(m *testing.M) {
	dir := os.Getenv(childVar)
	if dir == "" {
		os.Exit(m.Run())
	}
	_, err := usbsim.Plug(dir, usbsim.Stick{Functions: []string{"tty", "hidraw"}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(plugged)
	select {}
}

const plugged = "plugged"

// plugInProcess makes a child process plug in a stick with a tty and a hidraw. The caller must kill the process.
func plugInProcess(t *testing.T, dir string) (kill func()) {
	t.Helper()
	exe, err := os.Executable()
	must.NoError(t, err)
	c := exec.Command(exe)
	c.Env = append(os.Environ(), childVar+"="+dir)
	out, err := c.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, c.Start())
	kill = func() {
		c.Process.Kill()
		c.Wait()
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, plugged+"\n", line)
	return kill
}

func plug(t *testing.T, dir string, s usbsim.Stick) *usbsim.Plugged {
	t.Helper()
	p, err := usbsim.Plug(dir, s)
	must.NoError(t, err)
	t.Cleanup(func() {
		test.NoError(t, p.Unplug())
	})
	return p
}

func scan(t *testing.T, dir string) []sysfs.Device {
	t.Helper()
	devices, err := sysfs.Scan(os.DirFS(dir))
	must.NoError(t, err)
	return devices
}

// listing returns every path below dir, without the simulator's state.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		must.NoError(t, err)
		if entry.Name() == ".simulate" {
			return fs.SkipDir
		}
		all = append(all, path)
		return nil
	})
	return all
}

func TestPlug_LooksLikeRealStick(t *testing.T) {
	dir := t.TempDir()
	plug(t, dir, usbsim.Stick{Manufacturer: "Silicon Labs", Product: "CP2102", Serial: "0001", Functions: []string{"tty",
		"hidraw", "tty"}})
	want := sysfs.Device{
		Name: "1-1", Bus: 1, Address: 4, Path: "pci-0000:00:14.0-usbv2-0:1", PCIBusID: "0000:00:14.0",
		ID: sysfs.ID{Vendor: 0x10c4, Product: 0xea60}, Release: 0x100, Manufacturer: "Silicon Labs", Product: "CP2102",
		Serial: "0001", Speed: "12", MaxPower: 100,
		Interfaces: []sysfs.Interface{{Number: 0, Class: sysfs.Class{Class: 0xff}, Driver: "cp210x"}, {Number: 1,
			Class: sysfs.Class{Class: 3}, Driver: "usbhid"}, {Number: 2, Class: sysfs.Class{Class: 0xff}, Driver: "cp210x"}},
		Settings: []sysfs.Class{{Class: 3}, {Class: 0xff}},
		Nodes: []sysfs.Node{
			{Kind: sysfs.USB, Path: "dev/bus/usb/001/004", Interface: -1, Major: 189, Minor: 3},
			{Kind: sysfs.TTY, Path: "dev/ttyUSB0", Interface: 0, Major: 188},
			{Kind: sysfs.TTY, Path: "dev/ttyUSB1", Interface: 2, Major: 188, Minor: 1},
			{Kind: sysfs.HIDRaw, Path: "dev/hidraw0", Interface: 1, Major: 245},
		},
	}
	got := scan(t, dir)
	must.SliceLen(t, 1, got)
	test.Eq(t, want, got[0])
	links := map[string][]string{
		"dev/ttyUSB0": {"dev/serial/by-id/usb-Silicon_Labs_CP2102_0001-if00-port0"},
		"dev/ttyUSB1": {"dev/serial/by-id/usb-Silicon_Labs_CP2102_0001-if02-port0"},
	}
	test.Eq(t, links, sysfs.Links(os.DirFS(dir)), test.Sprint("links are"))
	for _, node := range want.Nodes {
		_, err := os.Stat(filepath.Join(dir, node.Path))
		test.NoError(t, err)
	}
}

func TestPlug_EqualSticksDifferByPort(t *testing.T) {
	dir := t.TempDir()
	first := plug(t, dir, usbsim.Stick{Port: "1-1"})
	plug(t, dir, usbsim.Stick{Port: "1-2"})
	plug(t, dir, usbsim.Stick{Port: "2-1"})
	before := scan(t, dir)
	must.SliceLen(t, 3, before)
	for i, want := range []string{"1-1 4 pci-0000:00:14.0-usbv2-0:1 dev/ttyUSB0",
		"1-2 5 pci-0000:00:14.0-usbv2-0:2 dev/ttyUSB1", "2-1 4 pci-0000:00:15.0-usbv2-0:1 dev/ttyUSB2"} {
		d := before[i]
		test.Eq(t, want, fmt.Sprint(d.Name, " ", d.Address, " ", d.Path, " ", d.Nodes[1].Path))
	}
	must.NoError(t, first.Unplug())
	test.SliceLen(t, 2, scan(t, dir))
	plug(t, dir, usbsim.Stick{Port: "1-1"})
	got := scan(t, dir)
	must.SliceLen(t, 3, got)
	must.Eq(t, before[0].Path, got[0].Path)
	test.Eq(t, 6, got[0].Address)
}

func TestUnplug_RemovesEverything(t *testing.T) {
	dir := t.TempDir()
	plug(t, dir, usbsim.Stick{Functions: []string{"tty", "hidraw"}}).Unplug()
	empty := listing(t, dir) // the root hub stays
	descriptors := testsupport.Descriptors(t)
	for range 3 {
		p := plug(t, dir, usbsim.Stick{Serial: "x", Functions: []string{"hidraw", "tty"}})
		got := listing(t, dir)
		test.False(t, len(got) <= len(empty), test.Sprintf("only %d paths", len(got)))
		for range 2 {
			test.NoError(t, p.Unplug())
		}
		got = listing(t, dir)
		test.Eq(t, empty, got, test.Sprintf("left: %q, was", got))
	}
	now := testsupport.Descriptors(t)
	test.False(t, now > descriptors, test.Sprintf("%d descriptors have become %d", descriptors, now))
	held, _ := filepath.Glob(filepath.Join(dir, ".simulate/*-*"))
	test.SliceEmpty(t, held, test.Sprint("left"))
}

func TestPlug_RefusesAPortThatIsTaken(t *testing.T) {
	dir := t.TempDir()
	p := plug(t, dir, usbsim.Stick{})
	_, err := usbsim.Plug(dir, usbsim.Stick{})
	test.EqError(t, err, fmt.Sprintf("port 1-1 of %s is taken by a stick of process %d: choose another port, or end "+
		"that process",
		dir, os.Getpid()))
	got := scan(t, dir)
	must.SliceLen(t, 1, got, must.Sprint("the stick is now"))
	test.Eq(t, p.Address, got[0].Address, test.Sprint("the stick is now"))
}

// The simulator usually runs as root, so it must not follow links to other directories.
func TestPlug_ChangesNothingOutsideItsDirectory(t *testing.T) {
	for _, name := range []string{"dev", "sys", "dev/bus", "dev/serial", "sys/devices", ".simulate"} {
		dir, outside := t.TempDir(), t.TempDir()
		if name != ".simulate" {
			plug(t, dir, usbsim.Stick{Port: "9-9"}).Unplug()
			must.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
		}
		link := outside
		if len(name) > 3 {
			link, _ = filepath.Rel(filepath.Dir(filepath.Join(dir, name)), outside)
		}
		must.NoError(t, os.Symlink(link, filepath.Join(dir, name)))
		_, err := usbsim.Plug(dir, usbsim.Stick{})
		test.Error(t, err, test.Sprintf("%s was followed", name))
		there, _ := os.ReadDir(outside)
		test.SliceEmpty(t, there, test.Sprintf("%s: made outside", name))
	}
}

func TestPlug_RefusesRealMachine(t *testing.T) {
	dir := t.TempDir()
	node := filepath.Join(dir, "dev/ttyUSB0")
	tree := filepath.Join(dir, "sys/devices/pci0000:00/0000:00:14.0/usb1/1-1")
	for _, err := range []error{
		os.MkdirAll(filepath.Dir(node), 0o755), os.WriteFile(node, nil, 0o600),
		os.MkdirAll(tree, 0o755), os.WriteFile(tree+"/uevent", []byte("DEVNAME=ttyUSB0\n"), 0o600),
	} {
		must.NoError(t, err)
	}
	before := listing(t, dir)
	_, err := usbsim.Plug(dir, usbsim.Stick{})
	test.ErrorContains(t, err, "has a sys that is not simulated")
	now := listing(t, dir)
	test.Eq(t, before, now, test.Sprintf("there are %q, were", now))
}

func TestHolds_IsTrueUntilUnplugged(t *testing.T) {
	dir := t.TempDir()
	p := plug(t, dir, usbsim.Stick{Functions: []string{"tty", "tty"}})
	var terminals []string
	for _, node := range p.Nodes {
		terminal, err := os.Readlink(filepath.Join(dir, node))
		must.NoError(t, err)
		test.True(t, Holds(dir, terminal), test.Sprintf("%s is not held", terminal))
		terminals = append(terminals, terminal)
	}
	must.False(t, Holds(dir, "/dev/pts/99999"), must.Sprint("a terminal without a stick is held"))
	must.False(t, Holds(dir, ""), must.Sprint("a terminal without a stick is held"))
	test.False(t, Holds(dir+"x", terminals[0]), test.Sprint("a terminal without a stick is held"))
	p.Unplug()
	kill := plugInProcess(t, dir)
	terminal, err := os.Readlink(filepath.Join(dir, "dev/ttyUSB0"))
	must.NoError(t, err, must.Sprintf("%s is not held", terminal))
	test.True(t, Holds(dir, terminal), test.Sprintf("%s is not held", terminal))
	kill()
	test.False(t, Holds(dir, terminal), test.Sprint("it is held by a process that was killed"))
	left, err := os.Open(filepath.Join(dir, stateDir, "1-1")) // any user can read this file
	must.NoError(t, err)
	defer left.Close()
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	for name, lock := range map[string]func() error{
		"flock": func() error { return unix.Flock(int(left.Fd()), unix.LOCK_EX) },
		"write": func() error { return unix.FcntlFlock(left.Fd(), unix.F_OFD_SETLK, &whole) },
		"read": func() error {
			return unix.FcntlFlock(left.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
		},
	} {
		err := lock()
		test.Eq(t, (name != "write"), (err == nil), test.Sprintf("%s: %v", name, err))
		test.False(t, Holds(dir, terminal),
			test.Sprintf("%s: it is held by a process that can only read the claim", name))
	}
}

// Holds may check the leftover file of a killed process while another process takes the port.
func TestPlug_IsNotDisturbedByHolds(t *testing.T) {
	dir := t.TempDir()
	plug(t, dir, usbsim.Stick{}).Unplug()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for ctx.Err() == nil {
				Holds(dir, "/dev/pts/99999")
			}
		})
	}
	for range 100 {
		must.NoError(t, os.WriteFile(filepath.Join(dir, stateDir, "1-1"), []byte("1\n/dev/pts/99999\n"), 0o600))
		p, err := usbsim.Plug(dir, usbsim.Stick{})
		must.NoError(t, err)
		must.NoError(t, p.Unplug())
	}
	cancel()
	all.Wait()
}

func TestPlug_InvalidStickChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	for want, s := range map[string]usbsim.Stick{
		`port "1-1.4" is not BUS-PORT, with a bus from 1 to 12: use for example "1-1"`:  {Port: "1-1.4"},
		`port "13-1" is not BUS-PORT, with a bus from 1 to 12: use for example "1-1"`:   {Port: "13-1"},
		`port "../x-1" is not BUS-PORT, with a bus from 1 to 12: use for example "1-1"`: {Port: "../x-1"},
		`id "10c4" is not VENDOR:PRODUCT in hex: use for example "10c4:ea60"`:           {ID: "10c4"},
		`function "disk" is not known: use "tty" or "hidraw"`:                           {Functions: []string{"tty", "disk"}},
	} {
		_, err := usbsim.Plug(dir, s)
		test.EqError(t, err, want)
	}
	_, err := os.Stat(dir)
	test.Error(t, err, test.Sprint("the directory was made"))
}

func TestPlug_IsAtomicForScans(t *testing.T) {
	dir := t.TempDir()
	plug(t, dir, usbsim.Stick{Port: "3-9"})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				p, err := usbsim.Plug(dir, usbsim.Stick{Port: fmt.Sprintf("%d-%d", 1+i/2, 1+i), Serial: "s",
					Functions: []string{"tty", "hidraw"}})
				if err != nil {
					t.Error(err)
					return
				}
				test.NoError(t, p.Unplug())
			}
		})
	}
	seen := 0
	for start := time.Now(); time.Since(start) < 2*time.Second || seen < 100 && time.Since(start) < time.Minute; {
		for _, d := range scan(t, dir) {
			if d.Name == "3-9" {
				continue
			}
			if seen++; len(d.Interfaces) != 2 || len(d.Nodes) != 3 || d.Serial != "s" {
				t.Fatalf("got %+v", d)
			}
		}
	}
	cancel()
	all.Wait()
	test.False(t, seen < 100, test.Sprintf("only %d times a scan saw a stick: the test tests nothing", seen))
	test.SliceLen(t, 1, scan(t, dir), test.Sprint("left"))
}

func TestServe_PrintsAndAnswersLines(t *testing.T) {
	dir := t.TempDir()
	p := plug(t, dir, usbsim.Stick{Functions: []string{"tty", "hidraw"}})
	ctx, cancel := context.WithCancel(t.Context())
	reader, out := io.Pipe()
	said := make(chan string)
	go func() {
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			said <- lines.Text()
		}
		close(said)
	}()
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, out); out.Close() }()

	for round := range 2 { // Serve continues after a task has closed the port
		for _, node := range p.Nodes {
			port, err := os.OpenFile(filepath.Join(dir, node), os.O_RDWR, 0)
			must.NoError(t, err)
			line := fmt.Sprintf("hello %d to %s", round, node)
			if _, err := fmt.Fprintln(port, line); err != nil {
				t.Fatal(err)
			}
			test.Eq(t, line, <-said, test.Sprint("it heard"))
			answer, err := bufio.NewReader(port).ReadString('\n')
			must.NoError(t, err, must.Sprint("it answered"))
			test.Eq(t, "stick: "+line+"\n", answer, test.Sprint("it answered"))
			port.Close()
		}
	}

	// the task reads no answers, and its line is longer than Serve's buffer of 4 kB
	port, err := os.OpenFile(filepath.Join(dir, p.Nodes[0]), os.O_RDWR, 0)
	must.NoError(t, err)
	defer port.Close()
	long := bytes.Repeat([]byte("x"), 10000)
	go port.Write(append(long, '\n'))
	for got := 0; got < len(long); {
		got += len(<-said)
	}

	cancel()
	test.NoError(t, <-served)
	_, open := <-said
	test.False(t, open, test.Sprint("it reported more"))
	// a task that has the port open must get a hangup
	p.Unplug()
	port.SetReadDeadline(time.Now().Add(time.Minute))
	io.Copy(io.Discard, port)
	_, err = port.Write([]byte("x"))
	test.Error(t, err, test.Sprint("it can still be written to"))
}

func TestPlug_ReplacesStickOfKilledProcess(t *testing.T) {
	dir := t.TempDir()
	plug(t, dir, usbsim.Stick{Functions: []string{"tty", "hidraw"}}).Unplug()
	empty := listing(t, dir)
	kill := plugInProcess(t, dir)
	_, err := usbsim.Plug(dir, usbsim.Stick{})
	must.Error(t, err, must.Sprint("the port of a process that runs was taken"))
	kill()
	got := scan(t, dir)
	must.SliceLen(t, 1, got, must.Sprint("it has left"))
	must.SliceLen(t, 3, got[0].Nodes, must.Sprint("it has left"))
	p := plug(t, dir, usbsim.Stick{Serial: "new"})
	got = scan(t, dir)
	must.SliceLen(t, 1, got)
	must.Eq(t, "new", got[0].Serial)
	must.SliceLen(t, 2, got[0].Nodes)
	test.Eq(t, "dev/ttyUSB0", got[0].Nodes[1].Path)
	p.Unplug()
	if got := listing(t, dir); !reflect.DeepEqual(got, empty) {
		t.Errorf("left: %q, was %q", got, empty)
	}
}

func TestPlug_ScansLeakNoDescriptor(t *testing.T) {
	dir := t.TempDir()
	plug(t, dir, usbsim.Stick{})
	scan(t, dir)
	descriptors := testsupport.Descriptors(t)
	for range 1000 {
		scan(t, dir)
	}
	now := testsupport.Descriptors(t)
	test.False(t, now > descriptors, test.Sprintf("%d descriptors have become %d", descriptors, now))
}
