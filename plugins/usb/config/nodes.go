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
	Title string // tty; or frontend, as the kernel calls it, where it has no kind
	Name  string // tty, tty-if01, tty-if01-2
}

// Choose returns the nodes of a device that a block exposes, with their names. The only
// node of a kind has the kind's name. If several interfaces have one, the name contains
// the interface; further ones are numbered. So a name does not depend on the numbers that
// the kernel gives to nodes, nor on nodes of other kinds.
func (b *Parsed) Choose(d sysfs.Device) []Node {
	var all []Node
	interfaces := map[string][]int{}
	for _, n := range d.Nodes {
		if !b.wants(n.Kind) {
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

// Missing is what a device does not have and the block needs, empty if nothing.
func (b *Parsed) Missing(d sysfs.Device) string {
	for _, kind := range b.needs() {
		if !slices.ContainsFunc(d.Nodes, func(n sysfs.Node) bool { return n.Kind == kind }) {
			return fmt.Sprintf("no %s: %s", kind, drivers(d))
		}
	}
	return ""
}

// drivers describes which driver could have made a node.
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
		return "its driver " + with[0] + " has made none"
	case len(with) > 1:
		return "its drivers " + strings.Join(with, ", ") + " have made none"
	}
	return "it has no interface (it may not be configured, or not authorized)"
}
