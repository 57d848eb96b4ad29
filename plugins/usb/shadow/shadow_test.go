// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shadow

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// null returns a node with the number of /dev/null, which every machine has, instead of a stick's number.
func null(name string) Node {
	return Node{Name: name, Source: "/dev/null", Major: 1, Minor: 3, Mode: 0o660, UID: 0, GID: -1}
}

func newDir(t *testing.T) *Dir { return New(filepath.Join(t.TempDir(), "nomad-usb")) }

// tree lists the content of the directory, sorted, without the mark.
func tree(t *testing.T, d *Dir) (all []string) {
	t.Helper()
	must.NoError(t, filepath.WalkDir(d.path, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(d.path, path)
		if err != nil || name == "." || name == mark {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		switch mode := info.Mode(); {
		case mode.IsDir():
			name += "/"
		case mode&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			name += " -> " + target
		default:
			name += fmt.Sprintf(" %v %d:%d %d %d", mode, unix.Major(stat.Rdev), unix.Minor(stat.Rdev), stat.Uid, stat.Gid)
		}
		all = append(all, name)
		return nil
	}))
	slices.Sort(all)
	return all
}

func wantTree(t *testing.T, d *Dir, want ...string) {
	t.Helper()
	if got := tree(t, d); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Lstat(path)
	must.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestMake_SetsOwnerAndMode(t *testing.T) {
	testsupport.NeedRoot(t)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	d := newDir(t)
	tty, raw := null("tty"), null("hidraw-if01")
	tty.UID, tty.GID, tty.Mode = 1000, 20, 0o666
	usb := Node{Name: "001/004", Source: "/dev/null", Major: 189, Minor: 3, Mode: 0o640, UID: -1, GID: -1}
	disk := Node{Name: "storage", Source: "/nonexistent/sda", Block: true, Major: 8, Minor: 1, Mode: 0o600, UID: -1,
		GID: -1}
	must.NoError(t, d.Make(Device{Name: "a-b-1", Nodes: []Node{tty, raw, disk}, Bus: []Node{usb}, Sys: []Link{{"1-1.4",
		"../../../devices/x/1-1.4"}}}))
	wantTree(t, d,
		"a-b-1/",
		"a-b-1/bus/",
		"a-b-1/bus/001/",
		"a-b-1/bus/001/004 Dcrw-r----- 189:3 0 0",
		"a-b-1/hidraw-if01 Dcrw-rw---- 1:3 0 0",
		"a-b-1/storage Drw------- 8:1 0 0",
		"a-b-1/sys/",
		"a-b-1/sys/1-1.4 -> ../../../devices/x/1-1.4",
		"a-b-1/tty Dcrw-rw-rw- 1:3 1000 20",
	)
	for _, dir := range []string{"", "a-b-1", "a-b-1/bus", "a-b-1/bus/001", "a-b-1/sys"} {
		if info, err := os.Stat(filepath.Join(d.path, dir)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%q does not have mode 0755: %v, %v", dir, info.Mode(), err)
		}
	}
	f, err := os.OpenFile(d.Path("a-b-1", "tty"), os.O_RDWR, 0)
	must.NoError(t, err)
	defer f.Close()
	n, err := f.WriteString("x")
	must.Eq(t, 1, n, must.Sprint("the node does not work"))
	test.NoError(t, err, test.Sprint("the node does not work"))
}

func TestMake_KeepsCorrectNodes(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	dev := Device{Name: "d", Nodes: []Node{null("tty")}, Bus: []Node{null("001/004")}, Sys: []Link{{"1-1", "../x"}}}
	must.NoError(t, d.Make(dev))
	paths := []string{"tty", "bus", "bus/001", "bus/001/004", "sys", "sys/1-1"}
	var before []uint64
	for _, p := range paths {
		before = append(before, inode(t, d.Path("d", p)))
	}
	again := New(d.path) // as after a restart
	must.NoError(t, again.Clear(map[string]bool{"d": true}))
	must.NoError(t, again.Make(dev))
	for i, p := range paths {
		test.Eq(t, before[i], inode(t, d.Path("d", p)), test.Sprintf("%s was made again", p))
	}
	dev.Nodes[0].Mode, dev.Nodes[0].GID = 0o600, 5
	must.NoError(t, again.Make(dev))
	test.Eq(t, before[0], inode(t, d.Path("d", "tty")), test.Sprint("the node was made again for its mode"))
	wantTree(t, d, "d/", "d/bus/", "d/bus/001/", "d/bus/001/004 Dcrw-rw---- 1:3 0 0", "d/sys/", "d/sys/1-1 -> ../x",
		"d/tty Dcrw------- 1:3 0 5")
}

func TestMake_ReplacesAtomically(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	dev := Device{Name: "d", Nodes: []Node{null("tty"), null("hidraw")}, Bus: []Node{null("001/004")}, Sys: []Link{{"1-1",
		"../x"}}}
	must.NoError(t, d.Make(dev))
	bus := inode(t, d.Path("d", "bus"))

	stop, seen := make(chan struct{}), make(chan error, 1)
	go func() { // acts as a task
		for {
			select {
			case <-stop:
				seen <- nil
				return
			default:
			}
			if _, err := os.Stat(d.Path("d", "tty")); err != nil {
				seen <- err
				return
			}
		}
	}()
	for minor := range uint32(200) {
		tty, usb := null("tty"), null(fmt.Sprintf("001/%03d", minor+1))
		tty.Minor, usb.Minor = 3+minor%5, 100+minor
		must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{tty}, Bus: []Node{usb}, Sys: []Link{{"2-1", "../y"}}}))
	}
	close(stop)
	test.NoError(t, <-seen, test.Sprint("there was a moment without a node"))
	test.Eq(t, bus, inode(t, d.Path("d", "bus")),
		test.Sprint("the directory was replaced, which a task may have mounted"))
	wantTree(t, d, "d/", "d/bus/", "d/bus/001/", "d/bus/001/200 Dcrw-rw---- 1:299 0 0", "d/sys/", "d/sys/2-1 -> ../y",
		"d/tty Dcrw-rw---- 1:7 0 0")
}

func TestMake_KeepsLargeMinorNumbers(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	fourth := Node{Name: "usb", Source: "/nonexistent", Major: 189, Minor: 3*128 + 5, Mode: 0o660}
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{fourth}}))
	wantTree(t, d, "d/", "d/usb Dcrw-rw---- 189:389 0 0")
}

func TestMake_ReplacesANodeOfAnotherKind(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{null("x")}}))
	block := null("x")
	block.Block = true
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{block}, Bus: []Node{null("001/001")}}))
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{block, null("sys")}}))
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{block}, Sys: []Link{{"1-1", "x"}}}))
	wantTree(t, d, "d/", "d/bus/", "d/bus/001/", "d/sys/", "d/sys/1-1 -> x", "d/x Drw-rw---- 1:3 0 0")
}

func TestMake_LinksToASimulatedNode(t *testing.T) {
	d := newDir(t)
	host := t.TempDir()
	terminal, pty := openTerminal(t)
	source := filepath.Join(host, "ttyUSB0")
	must.NoError(t, os.Symlink(pty, source))
	n := Node{Name: "tty", Source: source, Major: 188, Minor: 0, Mode: 0o666, UID: -1, GID: -1,
		Held: func(terminal string) bool { return terminal == pty }}
	for range 2 {
		must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{n}}))
		wantTree(t, d, "d/", "d/tty -> "+source)
		if info, err := os.Stat(pty); err != nil || info.Mode().Perm() != 0o666 {
			t.Errorf("mode is %v, %v", info.Mode(), err)
		}
		must.NoError(t, os.Chmod(pty, 0o600)) // a new terminal has this mode
	}
	must.NoError(t, terminal.Close())
	must.NoError(t, os.Remove(source))
	must.NoError(t, os.Symlink(filepath.Join(host, "gone"), source)) // the terminal no longer exists
	test.ErrorIs(t, d.Make(Device{Name: "d", Nodes: []Node{n}}), fs.ErrNotExist,
		test.Sprint("a dangling link"))
}

// openTerminal returns a pseudo-terminal's master, and the name of its slave.
func openTerminal(t *testing.T) (*os.File, string) {
	t.Helper()
	master, port, err := pty.Open()
	must.NoError(t, err)
	t.Cleanup(func() { master.Close() })
	must.NoError(t, port.Close())
	return master, port.Name()
}

// A task gets access to the source of a simulated node, because Make sets the block's owner and mode there. Without the
// checks, a link at the source could give the task any file of the host.
func TestMake_SimulationGetsNoHostDevice(t *testing.T) {
	testsupport.NeedRoot(t)
	for name, c := range map[string]struct {
		plant func(t *testing.T, source, victim string)
		want  string
	}{
		"a link to a file": {func(t *testing.T, source, victim string) { must.NoError(t, os.Symlink(victim, source)) },
			"not to the terminal of a simulated stick"},
		"a terminal that is no longer the simulation's": {func(t *testing.T, source, victim string) {
			_, pty := openTerminal(t)
			must.NoError(t, os.Symlink(pty, source))
		}, "not to the terminal of a simulated stick"},
		"a second name": {func(t *testing.T, source, victim string) { must.NoError(t, os.Link(victim, source)) },
			"use a file with a single hard link"},
		"a node of the machine": {func(t *testing.T, source, victim string) {
			must.NoError(t, unix.Mknod(source, unix.S_IFCHR|0o600, 1<<8|3))
		}, "use a file with a single hard link"},
		"a directory that other users may write to": {func(t *testing.T, source, victim string) {
			must.NoError(t, os.WriteFile(source, nil, 0o600))
			must.NoError(t, os.Chmod(filepath.Dir(source), 0o777))
		}, "other users may write to"},
		"nothing, and the number of a disk": {func(t *testing.T, source, victim string) {}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			dev := filepath.Join(t.TempDir(), "dev")
			must.NoError(t, os.Mkdir(dev, 0o755))
			source, victim := filepath.Join(dev, "ttyUSB0"), filepath.Join(filepath.Dir(dev), "shadow")
			must.NoError(t, os.WriteFile(victim, []byte("secret"), 0o600))
			c.plant(t, source, victim)
			n := Node{Name: "tty", Source: source, Block: true, Major: 8, Mode: 0o666, UID: 1000, GID: 1000,
				Held: func(string) bool { return false }}
			test.ErrorContains(t, d.Make(Device{Name: "d", Nodes: []Node{n}}), c.want)
			wantTree(t, d, "d/")
			info, err := os.Stat(victim)
			must.NoError(t, err)
			if stat := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o600 || stat.Uid != 0 {
				t.Errorf("the file of the host is %v of user %d now", info.Mode(), stat.Uid)
			}
		})
	}
}

// Linux truncates a number to 32 bits: 4104:0 becomes 8:0, the first disk.
func TestMake_RefusesTooLargeNumber(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	for _, number := range [][2]uint32{{4104, 0}, {1<<32 - 1, 0}, {4096 + 1, 3}, {8, 1 << 20}, {0, 0}, {0, 5}} {
		n := Node{Name: "tty", Source: "/nonexistent", Block: true, Major: number[0], Minor: number[1], Mode: 0o660}
		want := fmt.Sprintf("/nonexistent has the invalid device number %d:%d", number[0], number[1])
		test.EqError(t, d.Make(Device{Name: "d", Nodes: []Node{n}}), want)
		wantTree(t, d, "d/")
	}
	for _, number := range [][2]uint32{{4095, 1<<20 - 1}, {1, 0}} {
		n := Node{Name: "tty", Source: "/nonexistent", Major: number[0], Minor: number[1], Mode: 0o660}
		must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{n}}))
		wantTree(t, d, "d/", fmt.Sprintf("d/tty Dcrw-rw---- %d:%d 0 0", number[0], number[1]))
	}
}

func TestMake_RefusesSourceThatIsNotANode(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	source := filepath.Join(t.TempDir(), "ttyUSB0")
	must.NoError(t, os.Symlink("/etc/passwd", source))
	n := null("tty")
	n.Source = source
	test.ErrorContains(t, d.Make(Device{Name: "d", Nodes: []Node{n}}), "is not a device node")
	wantTree(t, d, "d/")
}

func TestMake_RefusesReplaceableDirectory(t *testing.T) {
	testsupport.NeedRoot(t)
	for name, plant := range map[string]func(t *testing.T, above string){
		"writable for all":      func(t *testing.T, above string) { must.NoError(t, os.Chmod(above, 0o777)) },
		"owned by another user": func(t *testing.T, above string) { must.NoError(t, os.Chown(above, 65534, 65534)) },
		"a link of another user": func(t *testing.T, above string) {
			must.NoError(t, os.Rename(above, above+"x"))
			must.NoError(t, os.Symlink(above+"x", above))
			must.NoError(t, os.Lchown(above, 65534, 65534))
		},
	} {
		t.Run(name, func(t *testing.T) {
			above := filepath.Join(t.TempDir(), "above")
			must.NoError(t, os.Mkdir(above, 0o755))
			plant(t, above)
			if err := New(filepath.Join(above, "nodes")).Make(Device{Name: "d", Nodes: []Node{null("tty")}}); err == nil ||
				errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "could replace its contents") {
				t.Errorf("got %v", err)
			}
			there, err := os.ReadDir(above)
			must.NoError(t, err, must.Sprint("made"))
			test.SliceEmpty(t, there, test.Sprint("made"))
		})
	}
}

func TestEmpty_RemovesNodesButKeepsDirectories(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	for _, name := range []string{"b", "c"} {
		must.NoError(t, d.Make(Device{Name: name, Nodes: []Node{null("tty")}, Bus: []Node{null("001/004")},
			Sys: []Link{{"1-1",
				"x"}}}))
	}
	for range 2 {
		must.NoError(t, d.Empty("b"))
		must.NoError(t, d.Empty("never"))
	}
	wantTree(t, d, "b/", "b/bus/", "b/bus/001/", "b/sys/", "c/", "c/bus/", "c/bus/001/",
		"c/bus/001/004 Dcrw-rw---- 1:3 0 0", "c/sys/", "c/sys/1-1 -> x", "c/tty Dcrw-rw---- 1:3 0 0")
}

func TestWithdraw_RemovesTheNodeFromEveryDevice(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	must.NoError(t, d.Withdraw(false, 1, 3)) // must not fail without the directory
	d.Admit(false, 1, 3)
	d.Begin()
	five, usb := null("tty"), null("001/004")
	five.Minor = 5
	for _, name := range []string{"d", "e"} { // the same device under two ids
		must.NoError(t, d.Make(Device{Name: name, Nodes: []Node{null("usb"), five}, Bus: []Node{usb},
			Sys: []Link{{"1-1", "x"}}}))
	}
	must.NoError(t, d.Withdraw(true, 1, 3)) // block device 1:3 is another device
	must.NoError(t, d.Withdraw(false, 1, 3))
	wantTree(t, d,
		"d/", "d/bus/", "d/bus/001/", "d/sys/", "d/sys/1-1 -> x", "d/tty Dcrw-rw---- 1:5 0 0",
		"e/", "e/bus/", "e/bus/001/", "e/sys/", "e/sys/1-1 -> x", "e/tty Dcrw-rw---- 1:5 0 0")
}

// A task can keep a removed node by an O_PATH descriptor or a hard link, and open it when another device has its
// number.
func TestNodes_GiveNoAccessAfterRemoval(t *testing.T) {
	testsupport.NeedRoot(t)
	other := null("tty")
	other.Minor = 5
	for name, remove := range map[string]func(d *Dir) error{
		"withdrawn":              func(d *Dir) error { return d.Withdraw(false, 1, 3) },
		"unplugged":              func(d *Dir) error { return d.Empty("d") },
		"of a previous run":      func(d *Dir) error { return New(d.path).Clear(nil) },
		"with another number":    func(d *Dir) error { return d.Make(Device{Name: "d", Nodes: []Node{other}}) },
		"replaced by a link":     func(d *Dir) error { return link("x", d.Path("d", "tty")) },
		"replaced by directory":  func(d *Dir) error { return makeDir(d.Path("d", "tty")) },
		"no longer listed":       func(d *Dir) error { return d.Make(Device{Name: "d"}) },
		"left over after a kill": func(d *Dir) error { return link("x", d.Path("d", "x")) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			open := null("tty")
			open.Mode, open.UID, open.GID = 0o666, 65534, 65534
			must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{open}}))
			if name == "left over after a kill" {
				must.NoError(t, os.Rename(d.Path("d", "tty"), d.Path("d", ".new-x")))
			}
			kept := -1
			for _, node := range []string{"tty", ".new-x"} {
				if testsupport.Exists(d.Path("d", node)) {
					fd, err := openPath(d.Path("d", node))
					must.NoError(t, err)
					defer unix.Close(fd)
					kept = fd
				}
			}
			must.NoError(t, remove(d))
			var st unix.Stat_t
			must.NoError(t, unix.Fstat(kept, &st))
			must.Eq(t, 0, st.Nlink, must.Sprint("the node is not removed"))
			test.Eq(t, []uint32{0, 0, unix.S_IFCHR}, []uint32{st.Uid, st.Gid, st.Mode})
		})
	}
}

// An agent that is not root owns the nodes itself, and can't give them away.
func TestNodes_AreRemovedWithoutTheRightToChown(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	usb, bus := null("usb"), null("001/004")
	usb.UID, bus.UID = 65534, 65534
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{usb}, Bus: []Node{bus}}))
	for _, dir := range []string{"", "bus", "bus/001"} {
		must.NoError(t, os.Chown(d.Path("d", dir), 65534, 65534))
	}
	for dir := d.path; dir != os.TempDir(); dir = filepath.Dir(dir) {
		must.NoError(t, os.Chmod(dir, 0o755))
	}
	testsupport.AsUser(t, 65534, func() error {
		return remove(filepath.Join(d.path, "d"), func(string, fs.FileInfo) bool { return true })
	})
	wantTree(t, d, "d/", "d/bus/", "d/bus/001/")
}

func TestNode_KeepsItsRightsIfItCannotBeReplaced(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{null("tty")}}))
	must.ErrorIs(t, replace(d.Path("d", "tty"), func(string) error { return nil }), os.ErrNotExist)
	wantTree(t, d, "d/", "d/tty Dcrw-rw---- 1:3 0 0")
}

func TestNode_DoesNotReplaceADirectory(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{null("tty")}}))
	must.NoError(t, os.Remove(d.Path("d", "tty")))
	must.NoError(t, os.Mkdir(d.Path("d", "tty"), 0o755))
	must.ErrorIs(t, d.Make(Device{Name: "d", Nodes: []Node{null("tty")}}), unix.EISDIR)
	wantTree(t, d, "d/", "d/tty/")
}

// Block and character devices have separate numbers: the block device 8:1 is a disk, and a character device
// 8:1 may exist, too.
func TestMake_DistinguishesBlockFromChar(t *testing.T) {
	testsupport.NeedRoot(t)
	for _, withdrawn := range []bool{true, false} {
		d := newDir(t)
		char, block := null("char"), null("block")
		block.Block = true
		must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{char, block}}))
		wantTree(t, d, "d/", "d/block Drw-rw---- 1:3 0 0", "d/char Dcrw-rw---- 1:3 0 0")
		must.NoError(t, d.Withdraw(withdrawn, 1, 3))
		left := "d/block Drw-rw---- 1:3 0 0"
		if withdrawn {
			left = "d/char Dcrw-rw---- 1:3 0 0"
		}
		wantTree(t, d, "d/", left)

		d.Begin()
		d.Admit(withdrawn, 1, 3)
		block.Name, char.Name = "char", "block" // swap the kinds
		must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{char, block}}))
		wantTree(t, d, "d/", "d/block Dcrw-rw---- 1:3 0 0", "d/char Drw-rw---- 1:3 0 0")
	}
}

// During a scan the kernel may remove a device and give its number to another.
func TestMake_RefusesANodeWithdrawnDuringTheScan(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	d.Begin()
	must.NoError(t, d.Withdraw(false, 1, 3))
	for _, dev := range []Device{{Name: "d", Nodes: []Node{null("tty")}}, {Name: "d", Bus: []Node{null("001/004")}}} {
		test.ErrorIs(t, d.Make(dev), ErrWithdrawn)
	}
	wantTree(t, d)
	d.Begin() // a new scan: sysfs may still list the node
	test.ErrorIs(t, d.Make(Device{Name: "d", Nodes: []Node{null("tty")}}), ErrWithdrawn)
	d.Admit(false, 1, 3) // a new node has the number
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{null("tty")}}))
	must.NoError(t, d.Withdraw(false, 1, 3))
	d.Doubt() // a report of a new node may have been missed
	d.Begin()
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{null("tty")}}))
	wantTree(t, d, "d/", "d/tty Dcrw-rw---- 1:3 0 0")
}

// "udevadm trigger -c remove" reports the removal of a node that still exists.
func TestWithdraw_Expires(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	must.NoError(t, d.Withdraw(false, 1, 3))
	d.Begin()
	dev := Device{Name: "d", Nodes: []Node{null("tty")}}
	test.ErrorIs(t, d.Make(dev), ErrWithdrawn)
	for gone, at := range d.free {
		d.free[gone] = at.Add(-freeFor)
	}
	must.NoError(t, d.Make(dev))
}

func TestClear_RemovesNodesOfPreviousRun(t *testing.T) {
	testsupport.NeedRoot(t)
	d, other := newDir(t), newDir(t)
	for _, dir := range []*Dir{d, other} {
		must.NoError(t, dir.Make(Device{Name: "old", Nodes: []Node{null("tty")}}))
		must.NoError(t, dir.Make(Device{Name: "still", Nodes: []Node{null("tty")}}))
	}
	must.NoError(t, os.WriteFile(filepath.Join(d.path, ".new-x"), nil, 0o600)) // left by a killed process
	must.NoError(t, New(d.path).Clear(map[string]bool{"still": true}))
	wantTree(t, d, "old/", "still/", "still/tty Dcrw-rw---- 1:3 0 0") // old stays: a task may have mounted it
	wantTree(t, other, "old/", "old/tty Dcrw-rw---- 1:3 0 0", "still/", "still/tty Dcrw-rw---- 1:3 0 0")
	must.NoError(t, New(filepath.Join(t.TempDir(), "never")).Clear(nil))
}

// Somebody removes the whole directory while the plugin runs.
func TestMake_MarksADirectoryThatWasRemoved(t *testing.T) {
	testsupport.NeedRoot(t)
	d := newDir(t)
	node := null("tty")
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{node}}))
	must.NoError(t, os.RemoveAll(d.path))
	must.NoError(t, d.Make(Device{Name: "d", Nodes: []Node{node}}))
	must.NoError(t, d.Withdraw(false, node.Major, node.Minor))
	wantTree(t, d, "d/")
}

func TestMake_RefusesADirectoryWithOtherFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "passwd")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	d := New(dir)
	must.NoError(t, d.Clear(nil))
	test.ErrorContains(t, d.Check(), "contains other files")
	err := d.Make(Device{Name: "d"})
	if err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "contains other files") {
		t.Errorf("got %v", err)
	}
	names, _ := os.ReadDir(dir)
	test.SliceLen(t, 1, names, test.Sprint("files were added"))
	device := filepath.Join(dir, "d")
	must.NoError(t, errors.Join(os.Mkdir(device, 0o755), os.WriteFile(device+"/file", nil, 0o600)))
	must.NoError(t, d.Empty("d"))
	_, err = os.Stat(device + "/file")
	test.NoError(t, err, test.Sprint("a foreign file was removed"))
}

func TestMake_RefusesInvalidNames(t *testing.T) {
	base := t.TempDir()
	d := New(filepath.Join(base, "x", "nomad-usb"))
	precious := filepath.Join(base, "precious")
	must.NoError(t, os.WriteFile(precious, nil, 0o600))
	for _, name := range []string{"", ".", "..", "../..", "../../precious", "a/b", "/etc", ".nomad-device-usb", "a\x00b"} {
		test.Error(t, d.Make(Device{Name: name}), test.Sprintf("device %q accepted", name))
		test.Error(t, d.Make(Device{Name: "d", Nodes: []Node{null(name)}}),
			test.Sprintf("node %q accepted", name))
		test.Error(t, d.Make(Device{Name: "d", Sys: []Link{{name, "x"}}}),
			test.Sprintf("link %q accepted", name))
		for _, bus := range []string{name + "/001", "001/" + name} {
			test.Error(t, d.Make(Device{Name: "d", Bus: []Node{null(bus)}}),
				test.Sprintf("bus %q accepted", bus))
		}
		must.NoError(t, d.Empty(name))
	}
	_, err := os.Stat(precious)
	test.NoError(t, err)
}

func TestMake_RefusesNodev(t *testing.T) {
	testsupport.NeedRoot(t)
	dir := t.TempDir()
	must.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NODEV, "mode=0755"))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	test.ErrorContains(t, New(dir+"/not/there").Check(), "mounted nodev")
	must.NoError(t, newDir(t).Check())
	err := New(dir).Make(Device{Name: "d", Nodes: []Node{null("tty")}})
	if err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "mounted nodev") {
		t.Errorf("got %v", err)
	}
}

func TestMake_ReportsAMissingRight(t *testing.T) {
	open := t.TempDir()
	must.NoError(t, os.Chmod(open, 0o777|fs.ModeSticky))
	for _, parent := range []string{open, "/"} {
		errs := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked, so the thread with the changed user ends with the goroutine
			if os.Geteuid() == 0 {
				if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
					errs <- e
					return
				}
			}
			errs <- New(filepath.Join(parent, "nomad-usb")).Make(Device{Name: "d", Nodes: []Node{null("tty")}})
		}()
		test.ErrorIs(t, <-errs, ErrRefused, test.Sprintf("below %s", parent))
	}
	names, _ := os.ReadDir(filepath.Join(open, "nomad-usb", "d"))
	test.SliceEmpty(t, names, test.Sprint("left"))
}
