// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"errors"
	"maps"
	"time"
)

// Spec describes a new dataset.
type Spec struct {
	Limits
	Tags Tags
	Dir  string // mount point, as for Engine.Mount; if empty, the dataset is not mounted
}

// Limits of a dataset, in bytes.
type Limits struct {
	Data      int64 // limit of the data, without snapshots
	Snapshots int64 // limit of the space of snapshots, on top of Data; 0: no limit
}

// Tags describe a dataset and its owner. No task can change them.
type Tags map[string]string

// With returns a copy of the tags with more tags set. An empty value removes a tag.
func (t Tags) With(more Tags) Tags {
	all := Tags{}
	maps.Copy(all, t)
	maps.Copy(all, more)
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

// Keys of Tags.
const (
	Kind      = "kind"      // "volume" or "slot"
	ID        = "id"        // Nomad's volume id, or the slot's id
	Volume    = "volume"    // the volume's name
	Namespace = "namespace" // namespace of the volume, or of the slot's holder
	Node      = "node"      // Nomad's id of the node of a slot's holder
	Lease     = "lease"     // identifies one reservation of a slot
	Holder    = "holder"    // a slot's holder, "<allocation id>/<task>", once it is known
	Kept      = "kept"      // how long the trash keeps the dataset, as a time.Duration; without this tag there is no limit
	Passed    = "passed"    // how much of Kept has passed
	From      = "from"      // previous name of an adopted dataset

	// Adopt is the key of a dataset that waits for a volume: a random text that only root of this node has seen. A new
	// volume whose parameter "adopt" is the key gets this dataset instead of an empty one. The dataset keeps the tag
	// when it becomes a volume, so that it waits for the same key again if the create fails.
	Adopt = "adopt"
)

// Dataset is an existing dataset.
type Dataset struct {
	Name    string
	Path    string // current mount point; empty if it is not mounted
	Place   string // ZFS property mountpoint: a path, "none" or "legacy"
	Created time.Time
	Tags    Tags
	Limits
	Usage
}

// IsVolume reports whether the dataset has the name and tags of a Nomad volume. It returns false for datasets that wait
// or are in the trash. The volume may have lost its record.
func (d Dataset) IsVolume() bool {
	return d.Tags[Kind] == "volume" && d.Name == VolumeName(d.Tags[Namespace], d.Tags[ID])
}

// Waits reports whether the dataset waits for a new volume that has its key (Adopt).
func (d Dataset) Waits() bool { return d.Tags[Adopt] != "" && !d.IsVolume() }

// Left returns how long the trash still keeps the dataset, in whole seconds, and the value of the tag Passed. If ends
// is false, the trash keeps the dataset until an operator empties the trash.
func (d Dataset) Left() (left, passed time.Duration, ends bool, err error) {
	if d.Tags[Kept] == "" {
		return 0, 0, false, nil
	}
	kept, err := time.ParseDuration(d.Tags[Kept])
	if err != nil {
		return 0, 0, false, err
	}
	passed, err = time.ParseDuration(cmp.Or(d.Tags[Passed], "0s"))
	if err != nil {
		return 0, 0, false, err
	}
	return max(0, kept-passed).Truncate(time.Second), passed, true, nil
}

// Usage is the space that a dataset uses, in bytes.
type Usage struct {
	Data      int64 // space that counts against Limits.Data
	Snapshots int64 // space that only snapshots use
}

// Look is the state of a root at one time.
type Look struct {
	Space    Space
	Datasets []Dataset // those made by this package, sorted by name
	Problem  error     // why datasets can't be made or used now, or nil
}

// Space is the space of a file system, in bytes.
type Space struct{ Size, Free int64 }

// Errors that this package wraps.
var (
	ErrNotFound       = errors.New("does not exist")
	ErrExists         = errors.New("already exists")
	ErrForeign        = errors.New("not made by this plugin")
	ErrInUse          = errors.New("in use")
	ErrTooSmall       = errors.New("too small for the existing data")
	ErrNoSpace        = errors.New("no space left")
	ErrHasClones      = errors.New("clones depend on it")
	ErrLaterSnapshots = errors.New("later snapshots would be lost")
	ErrUnavailable    = errors.New("not available")
)
