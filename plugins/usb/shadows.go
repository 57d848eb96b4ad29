package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/plugins/usb/match"
	"github.com/outrider-dev/outrider/plugins/usb/shadow"
	"github.com/outrider-dev/outrider/plugins/usb/simulate"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// kept is a device with shadow nodes.
type kept struct {
	plug plug
	gone time.Time // since when it is unplugged, zero if it is not
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
			v.kept[dir] = kept{plug: plugOf(s.Device)}
		case errors.Is(err, shadow.ErrRefused):
			if !v.refused {
				v.refused = true
				v.logger.Warn("no device nodes can be made for tasks: they get the kernel's own, with its owner and permissions, and not for longer than until the next re-plug", "error", err)
			}
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
		if slices.ContainsFunc(devices, func(d sysfs.Device) bool { return plugOf(d) == k.plug }) {
			continue
		}
		if k.gone.IsZero() {
			k.gone = now
			v.kept[dir] = k
		}
		var err error
		switch {
		case now.Sub(k.gone) < v.Grace.Duration():
			err = v.shadows.Yield(dir, v.Root)
		default:
			err = v.shadows.Empty(dir)
			delete(v.kept, dir)
		}
		if err != nil {
			v.warn("failed to remove nodes of what was unplugged: " + err.Error())
		}
	}
}

func (v *inventory) shadowOf(s *stick, dir string) shadow.Device {
	d := shadow.Device{Name: dir}
	var held func(string) bool
	if v.Root != "/" {
		held = func(terminal string) bool { return simulate.Holds(v.Root, terminal) }
	}
	for _, n := range s.nodes {
		node := shadow.Node{
			Name: n.name, Source: filepath.Join(v.Root, n.Path), Block: n.Block, Major: n.Major, Minor: n.Minor, Held: held,
			Mode: s.block.mode, UID: s.block.uid, GID: s.block.gid,
		}
		d.Nodes = append(d.Nodes, node)
		if n.Kind == sysfs.USB && s.forLibusb() {
			node.Name = fmt.Sprintf("%03d/%03d", s.Bus, s.Address)
			d.Bus = append(d.Bus, node)
		}
	}
	if len(d.Bus) > 0 {
		if target, err := fs.ReadLink(v.tree, path.Join("sys/bus/usb/devices", s.Name)); err == nil {
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
