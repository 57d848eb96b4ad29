// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Node is a node that a task gets.
type Node struct {
	sysfs.Node
	Title string // the kind, such as "tty"; for the kind "other", the kernel's name, such as "frontend"
	Name  string // unique among the block's nodes, such as tty, tty-if01 or tty-if01-2
}

// Choose returns the nodes of a device that the block exposes, with their names. If a device has one node of a kind,
// the node's name is the kind. If several interfaces have nodes of a kind, each node's name contains the number of its
// interface. Further nodes with the same name are numbered. A name depends neither on the kernel's node numbers nor on
// nodes of other kinds.
func (b *Parsed) Choose(d sysfs.Device) []Node {
	var all []Node
	interfaces := map[string][]int{}
	for _, n := range d.Nodes {
		if !b.wants(d, n.Kind) {
			continue
		}
		what := n.What()
		all = append(all, Node{Node: n, Title: what})
		if !slices.Contains(interfaces[what], n.Interface) {
			interfaces[what] = append(interfaces[what], n.Interface)
		}
	}
	uses := map[string]int{}
	for i := range all {
		n := &all[i]
		n.Name = n.Title
		if len(interfaces[n.Title]) > 1 && n.Interface >= 0 {
			n.Name = fmt.Sprintf("%s-if%02x", n.Title, n.Interface)
		}
		uses[n.Name]++
		if use := uses[n.Name]; use > 1 {
			n.Name = fmt.Sprintf("%s-%d", n.Name, use)
		}
	}
	return all
}

// Missing explains why a device is unhealthy: it lacks a kind of node that the block requires, or it is a disk for
// which the block gives tasks no node and no mount. For a healthy device, Missing returns "".
func (b *Parsed) Missing(d sysfs.Device) string {
	for _, kind := range b.needs() {
		if !slices.ContainsFunc(d.Nodes, func(n sysfs.Node) bool { return n.Kind == kind }) {
			return fmt.Sprintf("no %s: %s", kind, drivers(d))
		}
	}
	if len(b.Nodes) == 0 && len(b.Mounts) == 0 && len(b.Choose(d)) == 0 && d.OnlyDisk() {
		return "it is a disk: list the nodes that tasks get, such as nodes = [\"storage\"]"
	}
	return ""
}

// drivers explains why a device lacks a node. It lists the interfaces without a driver or, if none, the drivers.
func drivers(d sysfs.Device) string {
	var without, with []string
	for _, i := range d.Interfaces {
		if i.Driver == "" {
			without = append(without, fmt.Sprint(i.Number))
		} else if !slices.Contains(with, i.Driver) {
			with = append(with, i.Driver)
		}
	}
	switch {
	case len(without) == 1:
		return "no driver is bound to interface " + without[0]
	case len(without) > 1:
		return "no driver is bound to interfaces " + strings.Join(without, ", ")
	case len(with) == 1:
		return "its driver " + with[0] + " has made no such node"
	case len(with) > 1:
		return "its drivers " + strings.Join(with, ", ") + " have made no such node"
	}
	return "it has no interface (it may be unconfigured or unauthorized)"
}
