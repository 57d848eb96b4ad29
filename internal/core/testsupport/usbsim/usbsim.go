// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package usbsim simulates USB sticks, for tests and demonstrations without hardware. It makes the files that a stick
// has in /sys and /dev, but below a separate directory, with a pseudo-terminal for each device node. A stick stays
// plugged in as long as its process runs. The process needs neither root nor a kernel with USB. The directory contains
//
//	sys/bus/usb/devices/1-1        a link to sys/devices/pci0000:00/0000:00:14.0/usb1/1-1
//	dev/bus/usb/001/004            the descriptors; addresses on a bus start at 4 and increase with each plug
//	dev/ttyUSB0                    a link to /dev/pts/7
//	dev/serial/by-id/usb-...       a link to ../../ttyUSB0
//	.simulate                      a file for each port, with the process and the pseudo-terminals of its stick
//
// Package plugins/usb/simulation, a part of the USB plugin, treats a directory with .simulate as a simulation. It
// reads the current terminals of the sticks from the files of the ports.
//
// libusb finds the sticks too, with umockdev's preload library and UMOCKDEV_DIR set to the directory. Root hubs stay
// after the last stick has been unplugged.
package usbsim

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stick describes a stick.
type Stick struct {
	ID                            string   // as printed by lsusb; empty means "10c4:ea60"
	Manufacturer, Product, Serial string   // may be empty
	Port                          string   // the kernel's name: bus, "-", port; empty means "1-1"
	Functions                     []string // "tty", "hidraw": an interface and a node for each; empty means one tty
}

var (
	portForm = regexp.MustCompile(`^([1-9][0-9]?)-([1-9][0-9]?)$`)
	idForm   = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{4}$`)
)

// lastBus is the last bus for which busTree has a PCI address.
const lastBus = 12

// maxFunctions is limited by the number of endpoints (USB 2.0, 9.6.6).
const maxFunctions = 15

func (s *Stick) complete() error {
	s.ID = cmp.Or(s.ID, "10c4:ea60")
	if !idForm.MatchString(s.ID) {
		return fmt.Errorf("id %q is not VENDOR:PRODUCT in hex: use for example \"10c4:ea60\"", s.ID)
	}
	s.Port = cmp.Or(s.Port, "1-1")
	if !portForm.MatchString(s.Port) || s.bus() > lastBus {
		return fmt.Errorf("port %q is not BUS-PORT, with a bus from 1 to %d: use for example \"1-1\"", s.Port, lastBus)
	}
	if len(s.Functions) == 0 {
		s.Functions = []string{"tty"}
	}
	if len(s.Functions) > maxFunctions {
		return fmt.Errorf("%d functions are too many: a stick has endpoints for only %d", len(s.Functions), maxFunctions)
	}
	for _, f := range s.Functions {
		if f != "tty" && f != "hidraw" {
			return fmt.Errorf("function %q is not known: use \"tty\" or \"hidraw\"", f)
		}
	}
	return nil
}

// ids returns the vendor ID and the product ID.
func (s *Stick) ids() (vendor, product uint16) {
	_, _ = fmt.Sscanf(s.ID, "%x:%x", &vendor, &product) // complete has validated ID
	return vendor, product
}

func (s *Stick) bus() int {
	n, _ := strconv.Atoi(s.Port[:strings.IndexByte(s.Port, '-')])
	return n
}

// Plugged is a stick that is plugged in.
type Plugged struct {
	Stick
	Address int
	Nodes   []string // relative to the directory, in the order of Functions: "dev/ttyUSB0"

	dir       string
	root      *os.Root   // dir; links that lead out of it are errors
	terminals []terminal // in the order of Functions
	claim     *os.File   // the port's locked file; nil once unplugged
}

// Plug plugs the stick into dir, and makes dir if it is missing. The caller must call Unplug. Plug
// removes the files that a killed process has left at the port. It neither writes nor removes
// anything through a link that leads out of dir.
func Plug(dir string, s Stick) (_ *Plugged, err error) {
	if err := s.complete(); err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	root, err := open(dir)
	if err != nil {
		return nil, err
	}
	p := &Plugged{Stick: s, dir: dir, root: root}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.pull())
			root.Close()
		}
	}()
	unlock, err := lock(root)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if p.claim, err = claim(root, s.Port); err != nil {
		return nil, err
	}
	if err := remove(root, s.Port); err != nil {
		return nil, fmt.Errorf("failed to remove leftover files of port %s: %w", s.Port, err)
	}
	if p.Address, err = nextAddress(root, s.bus()); err != nil {
		return nil, err
	}
	for range s.Functions {
		t, err := openTerminal()
		if err != nil {
			return nil, fmt.Errorf("failed to open a pseudo-terminal: %w", err)
		}
		p.terminals = append(p.terminals, t)
		if _, err := fmt.Fprintln(p.claim, t.name()); err != nil {
			return nil, err
		}
	}
	if err := p.write(); err != nil {
		return nil, fmt.Errorf("failed to plug a stick into port %s: %w", s.Port, err)
	}
	return p, nil
}

// open opens the directory, and makes it if it is missing. It refuses a directory that contains sys or dev but is not
// a simulation, since Plug would replace the nodes of a machine.
func open(dir string) (*os.Root, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil || exists(root, stateDir) {
		return root, err
	}
	for _, name := range []string{"sys", "dev"} {
		if exists(root, name) {
			root.Close()
			return nil, fmt.Errorf("%s has a %s that is not simulated: use an empty or a new directory", dir, name)
		}
	}
	return root, nil
}

// Unplug removes the stick, and hangs up the tasks that have its nodes open. It is idempotent.
func (p *Plugged) Unplug() error {
	if p.claim == nil {
		return nil
	}
	unlock, err := lock(p.root)
	if err != nil {
		return err
	}
	defer p.root.Close()
	defer unlock()
	return p.pull()
}

func (p *Plugged) pull() error {
	if p.claim == nil {
		return nil
	}
	err := remove(p.root, p.Port)
	for _, t := range p.terminals {
		t.close()
	}
	err = errors.Join(err, p.root.Remove(state(p.Port))) // no other process is opening it: the directory is locked
	p.claim.Close()
	p.claim = nil
	return err
}

// stateDir contains the state that processes share.
const stateDir = ".simulate"

func state(name string) string { return path.Join(stateDir, name) }

// lock prevents other processes from changing the directory.
func lock(root *os.Root) (unlock func(), err error) {
	if err := root.MkdirAll(stateDir, 0o755); err != nil {
		return nil, err
	}
	f, err := root.Open(stateDir)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("failed to lock %s: %w", f.Name(), err)
	}
	return func() { f.Close() }, nil
}

// claim locks a port. The port is free if its last process has exited. The lock is an open file
// description lock: unlike a flock(2) lock, it cannot be taken by a process that may only read the
// file, and it can be tested without taking it.
func claim(root *os.Root, port string) (*os.File, error) {
	f, err := root.OpenFile(state(port), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("failed to lock %s: %w", f.Name(), err)
		}
		text, _ := io.ReadAll(f)
		holder, _, _ := strings.Cut(string(text), "\n")
		return nil, fmt.Errorf("port %s of %s is taken by a stick of process %s: choose another port, or end that process",
			port, root.Name(), holder)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// nextAddress returns the next free address of the bus. As in the kernel, a stick gets a new address
// each time it is plugged in.
func nextAddress(root *os.Root, bus int) (int, error) {
	name := state(fmt.Sprintf("bus%d", bus))
	last := 3
	if b, err := root.ReadFile(name); err == nil {
		last, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	for range 127 {
		if last++; last > 127 {
			last = 2
		}
		if exists(root, usbNode(bus, last)) {
			continue
		}
		return last, root.WriteFile(name, []byte(strconv.Itoa(last)+"\n"), 0o644)
	}
	return 0, fmt.Errorf("bus %d of %s has no free address", bus, root.Name())
}

// remove removes all files of the stick at a port, in an order in which no scan finds a partial
// stick. The tree is removed last, since it contains the names of the nodes.
func remove(root *os.Root, port string) error {
	var errs []error
	gone := func(name string) {
		if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	listed, _ := fs.Glob(root.FS(), "sys/bus/usb/devices/"+port+":*")
	for _, link := range append([]string{path.Join("sys/bus/usb/devices", port)}, listed...) {
		gone(link)
	}
	var nodes []string
	if tree, err := root.OpenRoot(treeOf(port)); err == nil {
		defer tree.Close()
		nodes = nodesOf(tree.FS())
	}
	links, _ := fs.Glob(root.FS(), "dev/serial/by-id/*")
	for _, link := range links {
		if to, err := root.Readlink(link); err == nil && slices.Contains(nodes, path.Join(path.Dir(link), to)) {
			gone(link)
		}
	}
	for _, node := range nodes {
		gone(node)
	}
	if err := root.RemoveAll(treeOf(port)); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// nodesOf returns the nodes that are named in the tree of a stick. It skips unreadable files: a
// killed process may have left an incomplete tree.
func nodesOf(tree fs.FS) (nodes []string) {
	_ = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "uevent" {
			return nil
		}
		text, _ := fs.ReadFile(tree, name)
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok && filepath.IsLocal(name) {
				nodes = append(nodes, path.Join("dev", name))
			}
		}
		return nil
	})
	return nodes
}
