// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	nomad "github.com/hashicorp/nomad/plugins/device"

	"github.com/outrider-dev/outrider/internal/core/device"

	"github.com/outrider-dev/outrider/plugins/usb/config"
	"github.com/outrider-dev/outrider/plugins/usb/match"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Reserve implements device.Instance. All ids are of one group, so all their devices are of one block.
func (v *inventory) Reserve(_ context.Context, ids []string) (*nomad.ContainerReservation, error) {
	now := v.last.Load()
	tree, done, err := v.open()
	if err != nil {
		return nil, err
	}
	defer done()
	r := &reservation{inventory: v, links: sysfs.Links(tree), env: map[string]string{}, taken: map[string]bool{}}
	published := map[*usbDevice]string{}
	for i, id := range ids {
		s := now.byID[id]
		switch {
		case s == nil || !s.pluggedInStill(tree) || !v.hasNodes(s):
			return nil, fmt.Errorf("device %q is not ready: %w", id, device.ErrVanished)
		case s.problem != "":
			return nil, fmt.Errorf("device %q can't be used: %s", id, s.problem)
		case published[s] != "":
			return nil, fmt.Errorf("devices %q and %q are the same device: a task can have it only once", published[s], id)
		}
		published[s] = id
		r.add(s, id, i+1, len(ids))
	}
	for _, id := range ids {
		v.reserved.Store(id, true)
	}
	if now.byID[ids[0]].block.Kind == match.AnyType {
		r.env["USB_VISIBLE_DEVICES"] = strings.Join(ids, ",")
	}
	return &nomad.ContainerReservation{Envs: r.env, Mounts: r.mounts, Devices: r.devices}, nil
}

// pluggedInStill reports whether the device is plugged in as the last scan found it. After a re-plug it has another
// address, and other nodes, which only the next scan finds. After a reset of the controller, another device may have
// its address.
func (s *usbDevice) pluggedInStill(root fs.FS) bool {
	return s.hasItsNumbers(root) && sysfs.Serial(root, s.Name) == s.Serial
}

// hasItsNumbers is pluggedInStill without the serial number, because reading that may block. After a reset of the
// controller, another device of the same product may have got the address, and hasItsNumbers reports true for it.
func (s *usbDevice) hasItsNumbers(root fs.FS) bool {
	now, ok := sysfs.Identify(root, s.Name)
	return ok && now.Address == s.Address && now.ID == s.ID
}

// hasNodes reports whether the device's shadow nodes exist. After a reset of its driver, a device has no nodes although
// it is plugged in.
func (v *inventory) hasNodes(s *usbDevice) bool {
	return s.dir == "" || !slices.ContainsFunc(s.nodes, func(n config.Node) bool {
		_, err := os.Lstat(v.hostPath(s, n))
		return err != nil
	})
}

// reservation collects the variables, mounts and devices for a task.
type reservation struct {
	*inventory
	links   map[string][]string // udev's links by node, read again: udev may make them after a scan
	env     map[string]string
	mounts  []*nomad.Mount
	devices []*nomad.DeviceSpec
	taken   map[string]bool // paths in the task that are in use
}

// add adds s, the nth of the requested devices, to the reservation. The first has n = 1.
func (r *reservation) add(s *usbDevice, id string, n, of int) {
	b := s.block
	prefix, dir := config.VariableName(b.Kind), b.Dir
	if n > 1 {
		prefix += "_" + strconv.Itoa(n)
		if dir != "" {
			dir += "-" + strconv.Itoa(n)
		}
	}
	_, port, _ := strings.Cut(s.Name, "-")
	for name, value := range map[string]string{
		"ID": id, "VENDOR_ID": fmt.Sprintf("%04x", s.as.Vendor), "PRODUCT_ID": fmt.Sprintf("%04x", s.as.Product),
		"SERIAL": s.Serial,
		"PORT":   s.Name, "BUS": strconv.Itoa(s.Bus), "BUS_PORT": port, "ADDRESS": strconv.Itoa(s.Address),
	} {
		if value != "" {
			r.env[prefix+"_"+name] = value
		}
	}
	named := map[string]bool{}
	for _, node := range s.nodes {
		host := r.hostPath(s, node)
		task := host
		if dir != "" {
			task = path.Join(dir, node.Name)
		}
		r.give(host, task, b)
		variable := config.Upper(node.Title)
		if named[node.Title] {
			variable = config.Upper(node.Name)
		}
		named[node.Title] = true
		r.env[prefix+"_"+variable] = task
		r.env[prefix+"_HOST_"+variable] = host
		for _, further := range s.furtherPaths(node, n, r.links[node.Path]) {
			r.give(host, further, b)
		}
	}
	for _, m := range b.Mounts {
		r.mount(m.HostPath, m.InTask(), m.ReadOnly)
	}
	if of == 1 && s.dir != "" && s.forLibusb() && named[string(sysfs.USB)] {
		r.mountForLibusb(s)
	}
}

// hostPath returns the path of the shadow node, or of the kernel's node if the device has no shadow nodes.
func (v *inventory) hostPath(s *usbDevice, n config.Node) string {
	if s.dir != "" {
		return v.shadows.Path(s.dir, n.Name)
	}
	return filepath.Join(v.Root, n.Path)
}

// furtherPaths returns additional paths of a node: the path from the option names, for the first requested device;
// udev's links, with by_id; and the kernel's path, for kinds whose programs try no other path.
func (s *usbDevice) furtherPaths(n config.Node, nth int, links []string) []string {
	var all []string
	if name, ok := s.block.Names[n.Name]; ok && nth == 1 {
		all = append(all, name)
	}
	if s.block.ByID {
		for _, link := range links {
			all = append(all, "/"+link)
		}
	}
	if n.Kind == sysfs.Sound || n.Kind == sysfs.Input || n.Kind == sysfs.Other {
		all = append(all, "/"+n.Path)
	}
	return all
}

func (r *reservation) give(host, task string, b *config.Parsed) {
	if !r.taken[task] {
		r.taken[task] = true
		r.devices = append(r.devices, &nomad.DeviceSpec{HostPath: host, TaskPath: task, CgroupPerms: b.Permissions})
	}
}

func (r *reservation) mount(host, task string, readOnly bool) {
	if !r.taken[task] {
		r.taken[task] = true
		r.mounts = append(r.mounts, &nomad.Mount{HostPath: host, TaskPath: task, ReadOnly: readOnly})
	}
}

// mountForLibusb mounts the directories that libusb searches. A running task then sees new nodes after a re-plug.
func (r *reservation) mountForLibusb(s *usbDevice) {
	r.mount(r.shadows.Path(s.dir, "bus"), "/dev/bus/usb", true)
	const sys = "/sys/bus/usb/devices" // mounted only if it exists: a mount needs a mount point
	if config.IsDir(sys) && config.IsDir(r.shadows.Path(s.dir, "sys")) {
		r.mount(r.shadows.Path(s.dir, "sys"), sys, true)
	}
}
