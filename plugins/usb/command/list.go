// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package command has the plugin's commands for the operator on the node.
package command

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/usb/config"
	"github.com/outrider-dev/outrider/plugins/usb/match"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
	"github.com/outrider-dev/outrider/plugins/usb/usbids"
)

// List is the command list.
var List = plugin.Command{
	Name: "list",
	Help: "list connected devices, with a ready-to-copy device block for each",
	Run: func(_ context.Context, args []string) error {
		flags := flag.NewFlagSet("list", flag.ContinueOnError)
		root := flags.String("root", "/", "the directory of a simulation, with sys and dev")
		_, err := plugin.Usage{
			Binary: pluginName, Command: "list", Arguments: "[-root DIR]",
			About: "Lists the connected devices, with a ready-to-copy device block for each.",
		}.Parse(flags, args, os.Stdout)
		if err != nil {
			return err
		}
		return list(os.Stdout, *root)
	},
}

// sample is printed if nothing is plugged in.
const sample = `
A block for a device that is not plugged in, with the id as lsusb shows it:

    device "zigbee" {
      id    = "10c4:ea60"
      nodes = ["tty"]
    }
`

// list prints the devices that are plugged in, with a block for each. root is / or a simulation.
func list(w io.Writer, root string) error {
	if !config.IsDir(filepath.Join(root, "sys/bus/usb/devices")) {
		fmt.Fprintf(w, "%s does not exist:\nthis machine has no USB, or the kernel's driver is not loaded.\n%s",
			filepath.Join(root, "sys/bus/usb/devices"), sample)
		return nil
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	tree, done, err := config.OpenTree(root)
	if err != nil {
		return err
	}
	defer done()
	devices, err := sysfs.Scan(tree)
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		fmt.Fprint(w, "Nothing is plugged in except for hubs.\n"+sample)
		return nil
	}
	var ids match.IDs
	names := usbids.Names{}
	links := sysfs.Links(tree)
	labels := map[string]int{}
	for i, id := range ids.Name(devices) {
		d := devices[i]
		if i > 0 {
			fmt.Fprintln(w)
		}
		vendor, product := names.Lookup(tree, d.ID)
		vendor, product = cmp.Or(d.Manufacturer, vendor), cmp.Or(d.Product, product)
		fmt.Fprintln(w, cut(strings.TrimSpace(d.ID.String()+"  "+strings.TrimSpace(vendor+" "+product))))
		row := func(name, value string) {
			if value != "" {
				fmt.Fprintf(w, "  %-8s %s\n", name, value)
			}
		}
		row("serial", d.Serial)
		row("port", d.Name)
		row("", d.Path)
		row("class", d.Classification())
		name := "nodes"
		for _, n := range d.Nodes {
			row(name, describe(d, n))
			for _, link := range links[n.Path] {
				row("", "  /"+link)
			}
			name = ""
		}
		row("id", id)
		label := suggestLabel(d, product)
		if labels[label]++; labels[label] > 1 {
			label = fmt.Sprintf("%s-%d", label, labels[label])
		}
		fmt.Fprintf(w, "\n%s", suggest(d, id, label))
	}
	return nil
}

// describe returns a node's path, kind, driver and interface as one line.
func describe(d sysfs.Device, n sysfs.Node) string {
	text := fmt.Sprintf("%-20s %s", "/"+n.Path, n.Kind)
	at := slices.IndexFunc(d.Interfaces, func(i sysfs.Interface) bool { return i.Number == n.Interface })
	if at < 0 {
		return text
	}
	if driver := d.Interfaces[at].Driver; driver != "" {
		return fmt.Sprintf("%s of %s, interface %d", text, driver, n.Interface)
	}
	return fmt.Sprintf("%s, interface %d", text, n.Interface)
}

// suggest returns a block that matches only this device and lists its kinds of nodes. If the device later lacks one of
// these kinds, the device is unhealthy.
func suggest(d sysfs.Device, id, label string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "    device %q {\n", label)
	option, value := "serial", d.Serial
	switch {
	case strings.Contains(id, "@"):
		option, value = "port", d.Path
		if d.Serial != "" {
			fmt.Fprintf(&b, "      # another device has the same serial number, %q\n", d.Serial)
		}
	case strings.Contains(value, "${") || strings.Contains(value, "%{"): // HCL would interpolate it
		value = match.PlainSerial(value)
	}
	fmt.Fprintf(&b, "      id     = %q\n      %-6s = %q\n", d.ID, option, value)
	var kinds []string
	for _, n := range d.Nodes {
		if kind := string(n.Kind); d.ByDefault(n.Kind) && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) > 0 {
		fmt.Fprintf(&b, "      nodes  = [%s]\n", quoted(kinds))
	} else if d.OnlyDisk() {
		fmt.Fprintf(&b, "      # nodes = [\"storage\"] bypasses the file systems of the disk\n")
	}
	fmt.Fprintf(&b, "    }\n")
	return b.String()
}

var notInLabel = regexp.MustCompile(`[^a-z0-9]+`)

// suggestLabel returns a type name for a device's block, from the product's name.
func suggestLabel(d sysfs.Device, product string) string {
	words := strings.Split(strings.Trim(notInLabel.ReplaceAllString(strings.ToLower(product), "-"), "-"), "-")
	label := strings.Join(words[:min(2, len(words))], "-")
	if label == "" || label == match.AnyType || slices.Contains(config.Taken, path.Join("/dev", label)) {
		return "my-device"
	}
	return label
}

// cut shortens a line to at most 79 characters.
func cut(line string) string {
	if runes := []rune(line); len(runes) > 79 {
		return string(runes[:78]) + "…"
	}
	return line
}
