// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package policy is the operator's file: the classes of datasets that a job's author may
// name, and what each of them allows. Both faces of the plugin read it.
package policy

import "github.com/outrider-dev/outrider/internal/core/schema"

// Path is where the file is if nothing else is configured.
const Path = "/etc/outrider/dataset.hcl"

// File is the operator's file.
type File struct {
	ZFS     string           `codec:"zfs" default:"/usr/sbin/zfs" doc:"The zfs program, absolute."`
	Classes map[string]Class `codec:"class" label:"name" doc:"Datasets of one kind, which a job or volume names: class \"fast\" { ... }."`
}

// Class is what an operator offers under a name.
type Class struct {
	Root string `codec:"root" required:"true" doc:"The dataset, such as \"tank/nomad\", below which the datasets of this class are made. It must exist. Nothing outside of it is touched."`

	DefaultCapacity schema.Size `codec:"default_capacity" default:"1GiB" doc:"Capacity of a volume that asks for none."`
	MinCapacity     schema.Size `codec:"min_capacity" default:"16MiB" min:"1MiB" doc:"The least that a volume may ask for."`
	MaxCapacity     schema.Size `codec:"max_capacity" default:"100GiB" max:"1000TiB" doc:"The most that a volume may ask for."`
	SnapshotReserve int         `codec:"snapshot_reserve" default:"20" min:"0" max:"10000" doc:"What snapshots of a dataset may hold besides its capacity, in percent of it. With 0 there is no limit."`

	Mode       string   `codec:"mode" default:"0755" doc:"Permissions of a volume's directory, octal, unless the volume has a parameter mode. It belongs to root unless there are uid and gid."`
	Allow      []string `codec:"allow" doc:"Parameters that a volume may have besides class: uid, gid, mode, clone_from."`
	Namespaces []string `codec:"namespaces" doc:"Nomad namespaces whose volumes may use the class; * stands for any characters. By default all."`

	OnDelete string          `codec:"on_delete" default:"trash" enum:"destroy,trash,retain" doc:"What becomes of a volume that is deleted: it is destroyed, put into the trash, or put there and never destroyed by the plugin."`
	TrashTTL schema.Duration `codec:"trash_ttl" default:"72h" min:"1s" doc:"How long the trash keeps a volume."`

	Slots *Slots `codec:"slots" doc:"Scratch for tasks. Without this block the class has volumes only."`
}

// Slots are datasets that tasks get empty, and give back.
type Slots struct {
	Count    int         `codec:"count" required:"true" min:"1" max:"1000" doc:"How many there are."`
	Capacity schema.Size `codec:"capacity" required:"true" min:"1MiB" doc:"What may be written to one."`
	Mount    string      `codec:"mount" default:"/scratch" doc:"Where a task finds it, absolute."`
}
