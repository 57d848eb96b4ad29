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
	Dir  string // where it is mounted, as in Engine.Mount
}

// Limits of a dataset, in bytes.
type Limits struct {
	Data      int64 // limit of the data, without snapshots
	Snapshots int64 // space of snapshots on top of Data; 0 is no limit
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
	Namespace = "namespace" // of the volume, or of the slot's holder
	Node      = "node"      // of a slot's holder: Nomad's node id
	Lease     = "lease"     // of a slot: different for each reservation
	Holder    = "holder"    // of a slot: "<allocation id>/<task>" once it is known
	Kept      = "kept"      // how long the trash keeps the dataset (time.Duration); no tag: until the trash is emptied
	Passed    = "passed"    // how much of Kept has passed
	From      = "from"      // of an adopted dataset: its previous name

	// Adopt is the key of a dataset that waits for a volume: a random text that only root of this
	// node has seen. A new volume whose parameter "adopt" is the key gets this dataset instead of
	// an empty one. The tag stays, so the same call can be repeated.
	Adopt = "adopt"
)

// Dataset is an existing dataset.
type Dataset struct {
	Name    string
	Path    string // current mount point; empty if it is not mounted
	Place   string // property mountpoint: a path, or "none" or "legacy"
	Created time.Time
	Tags    Tags
	Limits
	Usage
}

// IsVolume reports whether the dataset is a volume of Nomad, with or without a record: not in the trash, and not
// waiting.
func (d Dataset) IsVolume() bool {
	return d.Tags[Kind] == "volume" && d.Name == VolumeName(d.Tags[Namespace], d.Tags[ID])
}

// Waits reports whether the dataset waits for a volume that is created with its key (Adopt).
func (d Dataset) Waits() bool { return d.Tags[Adopt] != "" && !d.IsVolume() }

// Left returns how long the trash still keeps the dataset, in whole seconds, and the passed time that its tags record.
// If ends is false, the trash keeps the dataset until an operator empties the trash.
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

// Usage in bytes.
type Usage struct {
	Data      int64 // counts against Limits.Data
	Snapshots int64 // used by snapshots alone
}

// Look is the state of a root at one time.
type Look struct {
	Space    Space
	Datasets []Dataset // made by this package, in order of name
	Problem  error     // why no dataset can be made or used now, as from Check
}

// Space of a file system in bytes.
type Space struct{ Size, Free int64 }

// Errors that this package wraps.
var (
	ErrNotFound       = errors.New("does not exist")
	ErrExists         = errors.New("already exists")
	ErrForeign        = errors.New("not made by this plugin")
	ErrInUse          = errors.New("in use")
	ErrTooSmall       = errors.New("more space is in use")
	ErrNoSpace        = errors.New("no space left")
	ErrHasClones      = errors.New("clones depend on it")
	ErrLaterSnapshots = errors.New("later snapshots would be lost")
	ErrUnavailable    = errors.New("not available")
)
