// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package shadow makes device nodes for tasks. The kernel's own nodes disappear when the
// device is unplugged, come back with other numbers, and belong to root. Those of this
// package keep their paths, follow the numbers, and have the owner and mode that a task
// needs.
//
//	/dev/nomad-usb/10c4-ea60-0001/tty          as /dev/ttyUSB0 now
//	/dev/nomad-usb/10c4-ea60-0001/usb          as /dev/bus/usb/001/004 now
//	/dev/nomad-usb/10c4-ea60-0001/bus/001/004  the same, where libusb looks, in a directory to mount
//	/dev/nomad-usb/10c4-ea60-0001/sys/1-1      a link to the device, likewise
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

// Device is what the directory of one device is to hold.
type Device struct {
	Name  string // of its directory
	Nodes []Node

	Bus []Node // in bus/, with names such as "001/004"
	Sys []Link // in sys/
}

// Node is one device node.
type Node struct {
	Name   string // in the directory: "tty"
	Source string // the kernel's node, absolute
	Block  bool
	Major  uint32
	Minor  uint32

	// Held is set in a simulation, where the source is not a device node: it is a file, or
	// a link to a pseudo-terminal ("/dev/pts/7") for which Held reports that the simulation
	// has it now. The node is then a link to it. The simulation's numbers are not used,
	// since they are those of the machine's devices.
	Held func(terminal string) bool

	Mode     fs.FileMode // permission bits
	UID, GID int         // -1 is the source's
}

// Link is a symlink.
type Link struct{ Name, Target string }

// ErrRefused means that this process has no right to make nodes. Tasks then get the
// kernel's own.
var ErrRefused = errors.New("no right to make device nodes")

// ErrWithdrawn means that the device of a node has gone since Begin.
var ErrWithdrawn = errors.New("it was unplugged meanwhile")

// Dir is the directory of all devices. Empty, Withdraw, Admit and Doubt may be called by any
// goroutine, the other methods by one.
type Dir struct {
	path  string
	ready bool

	mu        sync.Mutex           // held while nodes are made or removed
	withdrawn map[number]bool      // since Begin
	free      map[number]time.Time // when a number was withdrawn that has not been added since
}

// freeFor is how long the kernel may list a node after the event of its removal. A node
// that it still lists afterwards exists: the event was synthetic ("udevadm trigger -c
// remove").
const freeFor = 10 * time.Second

// number is that of a node.
type number struct {
	block bool
	rdev  uint64
}

// New has no effect yet.
func New(path string) *Dir {
	return &Dir{path: path, withdrawn: map[number]bool{}, free: map[number]time.Time{}}
}

// Path is where a device's node is, or its directory, where node is empty.
func (d *Dir) Path(device, node string) string { return filepath.Join(d.path, device, node) }

// mark is a file that marks the directory as the plugin's. Unknown files in it are
// removed.
const mark = ".nomad-device-usb"

// prepare makes the directory.
func (d *Dir) prepare() error {
	if d.ready {
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

// isFree returns an error if there are files of others in the directory.
func (d *Dir) isFree() error {
	there, err := os.ReadDir(d.path)
	if err == nil && len(there) > 0 && !d.isMarked() {
		err = fmt.Errorf("%s has files of others: use a directory that is empty or missing", d.path)
	}
	return err
}

// isMarked reports whether the directory is the plugin's, and not missing or of others.
func (d *Dir) isMarked() bool {
	_, err := os.Lstat(filepath.Join(d.path, mark))
	return err == nil
}

// Check returns why no device node could be made in the directory. It makes nothing.
func (d *Dir) Check() error {
	if err := d.isFree(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for dir := d.path; ; dir = filepath.Dir(dir) { // the nearest that is there
		if err := mayHoldDevices(dir); !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return err
		}
	}
}

// Begin is called before a scan. Make makes no node whose number is withdrawn after Begin,
// since the scan may have found another device with that number.
func (d *Dir) Begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.withdrawn)
}

// Make brings the directory of a device to the wanted state. Nodes that are right are not
// touched, so that tasks can keep them open or mounted. Others are replaced atomically or
// removed.
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

// make makes the nodes and links of the device in dir, and removes everything else from it.
func (dev Device) make(dir string) error {
	if err := makeDir(dir); err != nil {
		return err
	}
	wanted := map[string]bool{".": true} // below dir
	put := func(name string, depth int, make func(path string) error) error {
		parts := strings.Split(name, "/")
		if len(parts) != depth || slices.ContainsFunc(parts, func(part string) bool { return !plain(part) }) {
			return fmt.Errorf("%q is not the name of a node or link", name)
		}
		for i := range parts[:depth-1] {
			above := filepath.Join(parts[:i+1]...)
			wanted[above] = true
			if err := makeDir(filepath.Join(dir, above)); err != nil {
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
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || wanted[name] {
			return err
		}
		if err := root.RemoveAll(name); err != nil || !e.IsDir() {
			return err
		}
		return fs.SkipDir
	})
}

// makeDir makes a directory that any user may read, independent of the umask.
func makeDir(path string) error {
	if info, err := os.Lstat(path); err == nil && !info.IsDir() {
		if err := os.Remove(path); err != nil { // of a node that had this name
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

// plain reports whether a name stays within its directory and is not one of this
// package's own.
func plain(name string) bool {
	return name != "" && !strings.HasPrefix(name, ".") && !strings.ContainsAny(name, "/\x00")
}

func refused(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}
