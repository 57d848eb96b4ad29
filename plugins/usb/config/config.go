// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package config decodes and validates the plugin's configuration, and applies it to the devices that are plugged in.
package config

import (
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/match"
)

// Config is the agent's plugin block.
type Config struct {
	Enabled  bool                   `codec:"enabled" default:"true" doc:"Publish devices."`
	Devices  map[string]Block       `codec:"device" label:"type" doc:"Devices that jobs request by this type: device \"zigbee\" {}."`
	MatchAll bool                   `codec:"match_all" default:"false" doc:"Publish all other devices, except hubs and disks, as type \"usb\"."`
	Exclude  map[string]match.Match `codec:"exclude" doc:"Devices that are never published, even if a block matches."`

	Rescan       schema.Duration `codec:"rescan" default:"30s" min:"200ms" doc:"Time between scans without a kernel event."`
	Grace        schema.Duration `codec:"grace" default:"10s" max:"5m" doc:"How long an unplugged device stays listed as unhealthy, and a reservation waits for it."`
	MountsForAll bool            `codec:"mounts_for_all" default:"true" doc:"Also mount for other drivers than exec-lite and python. Nomad then drops the task's volumes at its first start."`
	ShadowDir    string          `codec:"shadow_dir" default:"/dev/nomad-usb" doc:"Directory for this agent's device nodes, absolute. Other users must not be able to replace it. Its file system must not be mounted nodev."`
	Root         string          `codec:"root" default:"/" doc:"Directory with the /sys and /dev to read: / or a simulation (lab:up -usb=sim), with another shadow_dir. Other users must not be able to change it."`
}

// Block selects devices that jobs request by name, and sets the nodes and mounts that a task gets.
type Block struct {
	match.Match

	KnownAs string `codec:"known_as" doc:"For devices that change their vendor and product in use: the pair they are plugged in with (\"1a6e:089a\"). They are identified by port."`

	Nodes []string          `codec:"nodes" doc:"Kinds of nodes for the task: usb, tty, hidraw, input, video, media, sound, printer, storage, sg, bsg, other. A device that lacks one is unhealthy, unless it is optional (\"hidraw?\"). By default all but a disk's: storage, sg, bsg and usb."`
	Path  string            `codec:"path" doc:"Directory of the nodes in the task, absolute. By default /dev/ and the type."`
	Names map[string]string `codec:"names" doc:"Additional paths of nodes in the task: tty = \"/dev/ttyACM0\", \"tty-if01\" = \"/dev/radio\"."`

	Mode        string `codec:"mode" default:"0660" doc:"Permissions of the nodes, octal."`
	User        string `codec:"user" doc:"Owner of the nodes, by name or id. By default root."`
	Group       string `codec:"group" doc:"Group of the nodes, by name or id. By default that of the kernel's node."`
	Permissions string `codec:"cgroup_permissions" default:"rw" enum:"r,w,rw,rm,wm,rwm" doc:"Access in the task's device cgroup, where the driver has one: read, write, mknod."`
	ByID        bool   `codec:"by_id" default:"true" doc:"Also use udev's names for the nodes: /dev/serial/by-id/usb-...-if00."`
	Libusb      *bool  `codec:"libusb" doc:"Mount /dev/bus/usb and /sys/bus/usb/devices with only this device. By default if usb is the only node. One device per task can have it."`
	Count       int    `codec:"count" default:"1" min:"1" max:"1000" doc:"How many tasks can have the device at the same time."`

	Mounts []Mount `codec:"mount" doc:"Host files and directories to mount in tasks with the device."`
}

// Mount is a bind mount.
type Mount struct {
	HostPath string `codec:"host_path" required:"true" doc:"Path on the host, absolute."`
	TaskPath string `codec:"task_path" doc:"Path in the task, absolute. By default the same."`
	ReadOnly bool   `codec:"read_only" default:"true" doc:"Mount it read-only."`
}
