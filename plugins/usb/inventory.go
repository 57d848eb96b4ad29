package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/internal/core/device"

	"github.com/outrider-dev/outrider/plugins/usb/libusb"
	"github.com/outrider-dev/outrider/plugins/usb/match"
	"github.com/outrider-dev/outrider/plugins/usb/shadow"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
	"github.com/outrider-dev/outrider/plugins/usb/usbids"
)

// inventory is what is plugged in. Scan's fields are its goroutine's alone; Reserve
// and Stats read what the last scan left.
type inventory struct {
	*plan
	logger hclog.Logger

	ids     match.IDs
	names   *usbids.Names
	lister  libusb.Lister
	shadows *shadow.Dir
	said    map[string]bool // warnings that were given
	cleared bool            // whether what former runs left is removed
	kept    map[string]kept // by directory, every device that has one
	plugs   map[string]plug // by id

	last atomic.Pointer[state]
}

var (
	_ device.Inventory = (*inventory)(nil)
	_ device.Reserver  = (*inventory)(nil)
	_ device.Meter     = (*inventory)(nil)
)

// state is what a scan found. It does not change.
type state struct {
	byID map[string]*stick // by published id, of which a stick has as many as its count
}

// stick is one device that is published.
type stick struct {
	sysfs.Device
	id      string // without the number of its count
	block   *block
	nodes   []given
	problem string
	dir     string // of its shadow nodes, empty where it has none
	replugs int
}

// kept is a device with shadow nodes.
type kept struct {
	bus, address int
	gone         time.Time // since when it is unplugged, zero if it is not
}

// plug is what is known of a device's plugging.
type plug struct {
	bus, address int
	count        int // of re-plugs
}

func newInventory(p *plan, logger hclog.Logger) *inventory {
	v := &inventory{
		plan: p, logger: logger, shadows: shadow.New(p.ShadowDir), names: usbids.New(os.DirFS(p.Root)),
		said: map[string]bool{}, kept: map[string]kept{}, plugs: map[string]plug{},
	}
	v.last.Store(&state{})
	return v
}

// Scan is part of device.Inventory.
func (v *inventory) Scan(ctx context.Context) ([]device.Group, error) {
	if len(v.blocks) == 0 {
		v.warn("no device is published: add device blocks, or match_all = true, to the configuration (\"nomad-device-usb list\" prints a block for each device)")
	}
	devices, err := sysfs.Scan(os.DirFS(v.Root))
	if err != nil {
		return nil, err
	}
	v.join(devices)
	var sticks []*stick
	for _, a := range v.rules.Assign(devices, &v.ids) {
		if len(a.Also) > 0 {
			v.warn(fmt.Sprintf("device %s belongs to block %q, though %q matches it too: make them differ", a.ID, a.Type, a.Also[0]))
		}
		if a.Published() {
			sticks = append(sticks, v.stick(a))
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	v.shadow(sticks, devices)
	v.countPlugs(sticks)

	s := &state{byID: map[string]*stick{}}
	for _, st := range sticks {
		for _, id := range st.ids() {
			s.byID[id] = st
		}
	}
	v.last.Store(s)
	return v.groups(sticks), nil
}

func (v *inventory) stick(a match.Assigned) *stick {
	b := v.blocks[a.Type]
	return &stick{Device: a.Device, id: a.ID, block: b, nodes: b.choose(a.Device), problem: b.lack(a.Device)}
}

// ids are what it is published as: with a count, once for each task that may have
// it.
func (s *stick) ids() []string {
	if s.block.Count == 1 {
		return []string{s.id}
	}
	var all []string
	for i := range s.block.Count {
		all = append(all, fmt.Sprintf("%s#%d", s.id, i+1))
	}
	return all
}

// join adds what libusb knows and sysfs does not: the classes of settings and
// configurations that are not active. In a simulation libusb sees the machine's own
// devices, unless umockdev's preload library shows it the same tree.
func (v *inventory) join(devices []sysfs.Device) {
	if !libusb.Available || v.Root != "/" && os.Getenv("UMOCKDEV_DIR") != v.Root {
		return
	}
	listed, err := v.lister.Scan()
	if err != nil {
		v.warn("libusb can't be asked, what sysfs says must do: " + err.Error())
		return
	}
	for i := range devices {
		d := &devices[i]
		at := slices.IndexFunc(listed, func(l libusb.Device) bool { return l.Bus == d.Bus && l.Address == d.Address && l.ID == d.ID })
		if at >= 0 {
			d.Settings = listed[at].Classes
		}
	}
}

// shadow makes the nodes of what is plugged in, and removes those of what is no
// longer.
func (v *inventory) shadow(sticks []*stick, devices []sysfs.Device) {
	now := time.Now()
	wanted := map[string]bool{}
	for _, s := range sticks {
		wanted[match.Directory(s.id)] = true
	}
	if !v.cleared {
		if err := v.shadows.Clear(wanted); err != nil {
			v.warn("failed to remove what a former run left: " + err.Error())
		}
		v.cleared = true
	}
	v.forget(wanted, devices, now)
	for _, s := range sticks {
		dir := match.Directory(s.id)
		err := v.shadows.Make(v.shadowOf(s, dir))
		switch {
		case err == nil:
			s.dir = dir
			v.kept[dir] = kept{bus: s.Bus, address: s.Address}
		case errors.Is(err, shadow.ErrRefused):
			v.warn(fmt.Sprintf("no device nodes can be made for tasks: %v; they get the kernel's own, with the permissions and owner that those have, and not for longer than until the next re-plug", err))
		case s.problem == "":
			s.problem = "its device nodes can't be made: " + err.Error()
		}
	}
}

// forget removes the nodes of what is not plugged in: at once those that are others'
// now, all when the grace period is over.
func (v *inventory) forget(wanted map[string]bool, devices []sysfs.Device, now time.Time) {
	for dir, k := range v.kept {
		if wanted[dir] {
			continue
		}
		// the same plug under another id, since its twin was plugged in: tasks have it
		// under the old one
		if slices.ContainsFunc(devices, func(d sysfs.Device) bool { return d.Bus == k.bus && d.Address == k.address }) {
			continue
		}
		if k.gone.IsZero() {
			k.gone = now
			v.kept[dir] = k
		}
		var err error
		switch {
		case now.Sub(k.gone) < v.Grace.Duration():
			err = v.shadows.Yield(dir, v.nodesOf(devices))
		default:
			err = v.shadows.Empty(dir)
			delete(v.kept, dir)
		}
		if err != nil {
			v.warn("failed to remove nodes of what was unplugged: " + err.Error())
		}
	}
}

// nodesOf are the kernel's own.
func (v *inventory) nodesOf(devices []sysfs.Device) (all []shadow.Node) {
	for _, d := range devices {
		for _, n := range d.Nodes {
			all = append(all, v.nodeOf(n))
		}
	}
	return all
}

func (v *inventory) nodeOf(n sysfs.Node) shadow.Node {
	return shadow.Node{Source: filepath.Join(v.Root, n.Path), Block: n.Block, Major: n.Major, Minor: n.Minor}
}

func (v *inventory) shadowOf(s *stick, dir string) shadow.Device {
	d := shadow.Device{Name: dir}
	for _, n := range s.nodes {
		node := v.nodeOf(n.Node)
		node.Name, node.Mode, node.UID, node.GID = n.name, s.block.mode, s.block.uid, s.block.gid
		d.Nodes = append(d.Nodes, node)
		if n.Kind == sysfs.USB && s.forLibusb() {
			node.Name = fmt.Sprintf("%03d/%03d", s.Bus, s.Address)
			d.Bus = append(d.Bus, node)
		}
	}
	if len(d.Bus) > 0 {
		if target, err := os.Readlink(filepath.Join(v.Root, "sys/bus/usb/devices", s.Name)); err == nil {
			d.Sys = []shadow.Link{{Name: s.Name, Target: target}}
		}
	}
	return d
}

// forLibusb says whether the task gets a /dev/bus/usb.
func (s *stick) forLibusb() bool {
	if s.block.Libusb != nil {
		return *s.block.Libusb
	}
	return !slices.ContainsFunc(s.nodes, func(n given) bool { return n.Kind != sysfs.USB })
}

// countPlugs tells each how often it was plugged in again in this process's life.
func (v *inventory) countPlugs(sticks []*stick) {
	before := v.last.Load()
	for _, s := range sticks {
		p, known := v.plugs[s.id]
		if known && (before.byID[s.ids()[0]] == nil || p.bus != s.Bus || p.address != s.Address) {
			p.count++
		}
		v.plugs[s.id] = plug{s.Bus, s.Address, p.count}
		s.replugs = p.count
	}
}

// warn says each thing once.
func (v *inventory) warn(sentence string) {
	if !v.said[sentence] {
		v.said[sentence] = true
		v.logger.Warn(sentence)
	}
}
