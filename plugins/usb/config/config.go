// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package config is the plugin's configuration: what the operator writes, its mistakes, and what it means for the
// devices that are plugged in.
package config

import (
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/match"
)

// Config is the agent's plugin block.
type Config struct {
	Enabled  bool                   `codec:"enabled" default:"true" doc:"Whether devices are published at all."`
	Devices  map[string]Block       `codec:"device" label:"type" doc:"Devices to publish under a name of their own, which is the type that a job asks for: device \"zigbee\" {}. A device belongs to the first block that matches it, in the order of the names."`
	MatchAll bool                   `codec:"match_all" default:"false" doc:"Publish every other device too, hubs excepted, as type \"usb\"."`
	Exclude  map[string]match.Match `codec:"exclude" doc:"Devices that are never published, even if a block matches them."`

	Rescan    schema.Duration `codec:"rescan" default:"30s" min:"200ms" doc:"Time between scans without an event of the kernel."`
	Grace     schema.Duration `codec:"grace" default:"10s" max:"5m" doc:"How long an unplugged device stays listed, as unhealthy, and how long a reservation waits for it."`
	ShadowDir string          `codec:"shadow_dir" default:"/dev/nomad-usb" doc:"Directory in which the plugin makes device nodes for tasks, absolute. Only root and the agent's user may be able to replace it, and its file system must be mounted without nodev. Unlike the kernel's nodes, these keep their paths after a re-plug."`
	Root      string          `codec:"root" default:"/" doc:"Directory with the /sys and /dev that the plugin reads. Any other than / must be a simulation (lab:up -usb=sim), with another shadow_dir. Only root and the agent's user may be able to change it. Links that lead out of it are not followed, except to the pseudo-terminals of its sticks."`
}

// Block is a device that jobs ask for by name, and what a task gets of it.
type Block struct {
	match.Match

	KnownAs string `codec:"known_as" doc:"Vendor and product under which each device of this block is published, for devices that change their own when they are used: those that they have when they are plugged in, such as \"1a6e:089a\". The devices are identified by their ports."`

	Nodes []string          `codec:"nodes" doc:"Kinds of device nodes to give: usb, tty, hidraw, input, video, media, sound, printer, storage, sg, bsg, other. A device without one of them is unhealthy; one with a question mark (\"hidraw?\") may be missing. By default all except those of a disk: storage (sda, sda1), sg and bsg."`
	Path  string            `codec:"path" doc:"The directory in the task with the nodes, absolute: by default /dev/<type>, so that a serial port is /dev/<type>/tty. A second device of the same block in one task has -2 added."`
	Names map[string]string `codec:"names" doc:"Further paths in the task for a node: tty = \"/dev/ttyACM0\", \"tty-if01\" = \"/dev/radio\"."`

	Mode        string `codec:"mode" default:"0660" doc:"Permissions of the nodes, octal."`
	User        string `codec:"user" doc:"Owner of the nodes, by name or id; by default root."`
	Group       string `codec:"group" doc:"Group of the nodes, by name or id; by default that of the kernel's node (udev's dialout, for example)."`
	Permissions string `codec:"cgroup_permissions" default:"rw" enum:"r,w,rw,rm,wm,rwm" doc:"What the task's device cgroup allows, where the driver has one: read, write, mknod."`
	ByID        bool   `codec:"by_id" default:"true" doc:"Also give the nodes under udev's names, such as /dev/serial/by-id/usb-...-if00."`
	Libusb      *bool  `codec:"libusb" doc:"Mount /dev/bus/usb and /sys/bus/usb/devices with only this device, for libusb. By default if the usb node is the only one given. Only one device of a task can have it."`
	Count       int    `codec:"count" default:"1" min:"1" max:"1000" doc:"How many tasks may have the device at the same time."`

	Mounts []Mount `codec:"mount" doc:"Files and directories of the host that tasks with the device need too."`
}

// Mount is a bind mount.
type Mount struct {
	HostPath string `codec:"host_path" required:"true" doc:"On the host, absolute."`
	TaskPath string `codec:"task_path" doc:"In the task, absolute; by default the same."`
	ReadOnly bool   `codec:"read_only" default:"true" doc:"Whether the task may only read it."`
}
