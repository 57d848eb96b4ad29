// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/match"
)

// Config is the agent's plugin block.
type Config struct {
	Enabled  bool                   `codec:"enabled" default:"true" doc:"Whether devices are published at all."`
	Devices  map[string]Block       `codec:"device" label:"type" doc:"Devices to publish under a name of their own, which is the type that a job asks for: device \"zigbee\" {}. A device belongs to the first block that matches it, in the order of the names."`
	MatchAll bool                   `codec:"match_all" default:"false" doc:"Publish every other device too, hubs excepted, as type \"usb\"."`
	Exclude  map[string]match.Match `codec:"exclude" doc:"Devices that are never published, whatever matches them."`

	Rescan    schema.Duration `codec:"rescan" default:"30s" min:"200ms" doc:"How often to look without being told by the kernel that something was plugged."`
	Grace     schema.Duration `codec:"grace" default:"10s" max:"5m" doc:"How long an unplugged device stays listed, as unhealthy, and how long a reservation waits for it."`
	ShadowDir string          `codec:"shadow_dir" default:"/dev/nomad-usb" doc:"Where the plugin makes device nodes for tasks, absolute, on a file system mounted without nodev, which nobody but root and the agent's user may be able to replace. They outlive a re-plug, which the kernel's own do not."`
	Root      string          `codec:"root" default:"/" doc:"Below which directory /sys and /dev are looked for. Any other than / must be a simulation that \"nomad-device-usb simulate\" made, with a shadow_dir of its own, which nobody but root and the agent's user may be able to change: no link out of it is followed, but for the pseudo-terminals of its sticks."`
}

// Block is a device that jobs ask for by name, and what a task gets of it.
type Block struct {
	match.Match

	KnownAs string `codec:"known_as" doc:"Vendor and product under which every device of this block is published, for those that change their own when they are used: \"1a6e:089a\", as it is when plugged in. They are told apart by where they are plugged in."`

	Nodes []string          `codec:"nodes" doc:"Kinds of device nodes to give: usb, tty, hidraw, input, video, media, sound, printer, storage, sg, bsg, other. A device without one of them is unhealthy; one with a question mark (\"hidraw?\") may be missing. By default all that are there, but none of a disk: storage (sda, sda1), sg and bsg."`
	Path  string            `codec:"path" doc:"The directory in the task with the nodes, absolute: by default /dev/<type>, so that a serial port is /dev/<type>/tty. A second device of the same block in one task has -2 added."`
	Names map[string]string `codec:"names" doc:"Further paths in the task for a node: tty = \"/dev/ttyACM0\", \"tty-if01\" = \"/dev/radio\"."`

	Mode        string `codec:"mode" default:"0660" doc:"Permissions of the nodes, octal."`
	User        string `codec:"user" doc:"Owner of the nodes, by name or id; by default root."`
	Group       string `codec:"group" doc:"Group of the nodes, by name or id; by default that of the kernel's node (udev's dialout, for example)."`
	Permissions string `codec:"cgroup_permissions" default:"rw" enum:"r,w,rw,rm,wm,rwm" doc:"What the task's device cgroup allows, where the driver has one: read, write, mknod."`
	ByID        bool   `codec:"by_id" default:"true" doc:"Also give the nodes under udev's names, such as /dev/serial/by-id/usb-...-if00."`
	Libusb      *bool  `codec:"libusb" doc:"Mount /dev/bus/usb and /sys/bus/usb/devices with this device alone, where libusb looks. By default where the usb node is the only one given. Of the devices of a task only one can have it."`
	Count       int    `codec:"count" default:"1" min:"1" max:"1000" doc:"How many tasks may have the device at the same time."`

	Together int `codec:"together" default:"1" min:"1" max:"100" doc:"How many devices of one product are one unit: a task that asks for one gets all that the block matches, the second with -2 added to its paths and _2 to its variables, in the order of their ids. With more or fewer of them plugged in the unit is unhealthy."`

	Mounts []Mount `codec:"mount" doc:"Files and directories of the host that tasks with the device need too."`
}

// Mount is a bind mount.
type Mount struct {
	HostPath string `codec:"host_path" required:"true" doc:"On the host, absolute."`
	TaskPath string `codec:"task_path" doc:"In the task, absolute; by default the same."`
	ReadOnly bool   `codec:"read_only" default:"true" doc:"Whether the task may only read it."`
}
