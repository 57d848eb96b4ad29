// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package policy reads the operator's file, which defines the classes of datasets and what each class
// allows jobs to request. Both roles of the plugin read it.
package policy

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/hcl"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// Path is the default path of the operator's file.
const Path = "/etc/outrider/dataset.hcl"

// File is the operator's file.
type File struct {
	ZFS     string           `codec:"zfs" default:"/usr/sbin/zfs" doc:"Path of the zfs program, absolute."`
	Classes map[string]Class `codec:"class" label:"name" doc:"A class of datasets, which jobs and volumes request by its name: class \"fast\" { ... }."`
}

// Class defines the location and limits of datasets that jobs request by its name.
type Class struct {
	Root string `codec:"root" required:"true" doc:"The dataset below which the class makes its datasets, such as \"tank/nomad\". It must exist, outside any other root. Two agents must not share it."`

	DefaultCapacity schema.Size `codec:"default_capacity" default:"1GiB" doc:"Capacity of a volume that requests none."`
	MinCapacity     schema.Size `codec:"min_capacity" default:"16MiB" min:"1MiB" doc:"Minimum capacity of a volume."`
	MaxCapacity     schema.Size `codec:"max_capacity" default:"100GiB" max:"1000TiB" doc:"Maximum capacity of a volume."`
	SnapshotReserve int         `codec:"snapshot_reserve" default:"20" min:"0" max:"10000" doc:"Space for snapshots on top of the capacity, as a percentage of it. 0 is no limit."`

	Mode       string   `codec:"mode" default:"0755" doc:"Permissions of a volume's directory, octal, if it has no parameter mode. Root owns it if it has no uid and gid."`
	Allow      []string `codec:"allow" doc:"Parameters that volumes may set: uid, gid, mode, clone_from."`
	Namespaces []string `codec:"namespaces" doc:"Namespaces whose volumes may use the class; * matches any characters. By default all."`

	OnDelete string          `codec:"on_delete" default:"trash" enum:"destroy,trash,retain" doc:"What a deletion does: destroy the volume, keep it in the trash for trash_ttl, or keep it there until an operator empties it."`
	TrashTTL schema.Duration `codec:"trash_ttl" default:"72h" min:"1s" doc:"How long the trash keeps a volume."`

	Slots *Slots `codec:"slots" doc:"Scratch for tasks. Without this block the class has volumes only."`
}

// Slots defines the datasets that tasks get as scratch.
type Slots struct {
	Count    int         `codec:"count" required:"true" min:"1" max:"1000" doc:"Number of slots."`
	Capacity schema.Size `codec:"capacity" required:"true" min:"1MiB" doc:"Size of a slot."`
	Mount    string      `codec:"mount" default:"/scratch" doc:"Path of a slot in the task, absolute."`
}

const maxFile = 1 << 20 // far more than classes need

var options = schema.Of[File]()

// Load reads the operator's file and validates it. It refuses a file that users other than root can change.
// The error names the file and every mistake. It wraps fs.ErrNotExist if the file does not exist.
func Load(path string) (*File, error) {
	text, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("the operator's file can't be used: %w", err)
	}
	f, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("the operator's file %s is not valid: %w", path, err)
	}
	return f, nil
}

func parse(text string) (*File, error) {
	var body map[string]any
	if err := hcl.Decode(&body, text); err != nil {
		return nil, err
	}
	f, err := options.DecodeAgent(body)
	if err != nil {
		return nil, err
	}
	return &f, nil
}

// read returns the text of the file. It also checks each directory and link of the path, because a user who can change
// one of them can replace the file.
func read(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	dir, err := owndir.Open(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	defer dir.Close()
	f, err := os.OpenFile(real, unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if err := owndir.CheckFile(path, info); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is larger than 1 MiB", path)
	}
	return string(text), err
}

// Engine returns the engine of a class, which must exist.
func (f *File) Engine(class string) *engine.Engine { return engine.Open(f.ZFS, f.Classes[class].Root) }
