// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package shadow makes device nodes for tasks. The kernel's nodes disappear when the device is unplugged, return with
// other numbers, and belong to root. The nodes of this package keep their paths, follow the numbers, and have the owner
// and mode that a task needs.
//
//	/dev/nomad-usb/10c4-ea60-0001/tty          at present the same device as /dev/ttyUSB0
//	/dev/nomad-usb/10c4-ea60-0001/usb          at present the same device as /dev/bus/usb/001/004
//	/dev/nomad-usb/10c4-ea60-0001/bus/001/004  the same as usb; for libusb, bus is mounted at /dev/bus/usb
//	/dev/nomad-usb/10c4-ea60-0001/sys/1-1      a link into /sys; for libusb, sys is mounted at /sys/bus/usb/devices
package shadow

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// Device is the wanted content of a device's directory.
type Device struct {
	Name  string // name of the directory
	Nodes []Node

	Bus []Node // in bus/, with names such as "001/004"
	Sys []Link // in sys/
}

// Node is one device node.
type Node struct {
	Name   string // name in the directory, such as "tty"
	Source string // absolute path of the kernel's node
	Block  bool
	Major  uint32
	Minor  uint32

	// Held is set in a simulation. It must report whether a pseudo-terminal ("/dev/pts/7") belongs to the simulation now.
	// Source is then not a device node but a file, or a link to such a terminal, and Make makes a link to Source. It
	// ignores the simulation's numbers, because real devices of the machine may have the same.
	Held func(terminal string) bool

	Mode     fs.FileMode // permission bits
	UID, GID int         // -1: as for Source
}

// Link is a symlink.
type Link struct{ Name, Target string }

// ErrRefused means that this process may not create device nodes. Tasks then get the kernel's nodes.
var ErrRefused = errors.New("not permitted to create device nodes")

// ErrWithdrawn means that the device of a node was unplugged, so the node's number is withdrawn.
var ErrWithdrawn = errors.New("the device was unplugged")

// Dir is the directory of all devices. Any goroutine may call Empty, Withdraw, Admit and Doubt. Only one
// goroutine may call the other methods.
type Dir struct {
	path  string
	ready bool

	mu        sync.Mutex           // held while nodes are made or removed
	withdrawn map[number]bool      // numbers that were withdrawn since Begin
	free      map[number]time.Time // when a number was withdrawn; Admit deletes its entry
}

// freeFor is how long sysfs may list a node after the event of its removal. A node that is listed for longer exists,
// and the event was synthetic ("udevadm trigger -c remove").
const freeFor = 10 * time.Second

// number is the kind and number of a device node.
type number struct {
	block bool
	rdev  uint64
}

// New returns the Dir of a path. It does not make the directory.
func New(path string) *Dir {
	return &Dir{path: path, withdrawn: map[number]bool{}, free: map[number]time.Time{}}
}

// Path returns the path of a device's node, or of its directory if node is empty.
func (d *Dir) Path(device, node string) string { return filepath.Join(d.path, device, node) }

// mark is a file that marks the directory as the plugin's. Unknown files in a marked directory are removed.
const mark = ".nomad-device-usb"

// prepare makes and marks the directory.
func (d *Dir) prepare() error {
	if d.ready && d.isMarked() {
		return nil
	}
	dir, err := owndir.Make(d.path, 0o755)
	if err != nil {
		return fmt.Errorf("shadow_dir: %w", err)
	}
	dir.Close()
	if err := d.isFree(); err != nil {
		return err
	}
	err = os.WriteFile(filepath.Join(d.path, mark), []byte("Everything here is made and removed by nomad-device-usb.\n"),
		0o644)
	d.ready = err == nil
	return err
}

// isFree returns an error if the directory has files but no mark.
func (d *Dir) isFree() error {
	there, err := os.ReadDir(d.path)
	if err == nil && len(there) > 0 && !d.isMarked() {
		err = fmt.Errorf("%s contains other files: use a directory that is empty or missing", d.path)
	}
	return err
}

// isMarked reports whether the directory exists and is the plugin's.
func (d *Dir) isMarked() bool {
	_, err := os.Lstat(filepath.Join(d.path, mark))
	return err == nil
}

// Check returns an error if no device node can be made in the directory. It changes nothing.
func (d *Dir) Check() error {
	if err := d.isFree(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for dir := d.path; ; dir = filepath.Dir(dir) { // looks for the nearest existing directory
		if err := mayHoldDevices(dir); !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return err
		}
	}
}

// Begin must be called before each scan. Make refuses a node whose number is withdrawn after Begin, because another
// device may have this number since the scan.
func (d *Dir) Begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.withdrawn)
}

// Make brings the directory of a device to the wanted state. It leaves correct nodes in place, because tasks
// may have them open or mounted, and atomically replaces or removes others.
func (d *Dir) Make(dev Device) error {
	if !plain(dev.Name) {
		return fmt.Errorf("%q is not the name of a directory", dev.Name)
	}
	if err := d.prepare(); err != nil {
		return refused(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range append(slices.Clone(dev.Nodes), dev.Bus...) {
		at := number{n.Block, n.number()}
		if (d.withdrawn[at] || time.Since(d.free[at]) < freeFor) && n.Held == nil {
			return fmt.Errorf("%s: %w", n.Source, ErrWithdrawn)
		}
	}
	return refused(dev.make(filepath.Join(d.path, dev.Name)))
}

// make makes the nodes and links of the device in dir, and removes all other nodes and links.
func (dev Device) make(dir string) error {
	if err := makeDir(dir); err != nil {
		return err
	}
	wanted := map[string]bool{} // paths below dir
	put := func(name string, depth int, make func(path string) error) error {
		parts := strings.Split(name, "/")
		if len(parts) != depth || slices.ContainsFunc(parts, func(part string) bool { return !plain(part) }) {
			return fmt.Errorf("%q is not the name of a node or link", name)
		}
		for i := range parts[:depth-1] {
			if err := makeDir(filepath.Join(dir, filepath.Join(parts[:i+1]...))); err != nil {
				return err
			}
		}
		wanted[name] = true
		return make(filepath.Join(dir, name))
	}
	for _, n := range dev.Nodes {
		if err := put(n.Name, 1, n.make); err != nil {
			return err
		}
	}
	for _, n := range dev.Bus {
		if err := put("bus/"+n.Name, 3, n.make); err != nil {
			return err
		}
	}
	for _, l := range dev.Sys {
		if err := put("sys/"+l.Name, 2, func(path string) error { return link(l.Target, path) }); err != nil {
			return err
		}
	}
	return remove(dir, func(name string, _ fs.FileInfo) bool { return !wanted[name] })
}

// makeDir makes a directory with mode 0755, independent of the umask.
func makeDir(path string) error {
	if info, err := os.Lstat(path); err == nil && !info.IsDir() {
		if err := discard(path); err != nil { // an earlier node with this name
			return err
		}
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() == 0o755 {
		return err
	}
	return os.Chmod(path, 0o755)
}

// plain reports whether a name stays within its directory and is not reserved for this package.
func plain(name string) bool {
	return name != "" && !strings.HasPrefix(name, ".") && !strings.ContainsAny(name, "/\x00")
}

func refused(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}
