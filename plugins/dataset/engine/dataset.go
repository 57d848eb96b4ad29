// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"errors"
	"maps"
	"time"
)

// Spec is what a new dataset is.
type Spec struct {
	Limits
	Tags Tags
	Dir  string // where it is mounted, as in Engine.Mount
}

// Limits of a dataset, in bytes.
type Limits struct {
	Data      int64 // what may be written; snapshots do not count
	Snapshots int64 // what snapshots may hold besides; 0 is no limit
}

// Tags are what the dataset is, for whom. They are kept where no task can change them.
type Tags map[string]string

// With returns these tags with more of them. One that is empty is removed.
func (t Tags) With(more Tags) Tags {
	all := Tags{}
	maps.Copy(all, t)
	maps.Copy(all, more)
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

// The tags.
const (
	Kind      = "kind"      // "volume" or "slot"
	ID        = "id"        // Nomad's volume id, or the slot's
	Volume    = "volume"    // the volume's name
	Namespace = "namespace" // of the volume, or of the slot's holder
	Node      = "node"      // of a slot's holder: Nomad's node id
	Lease     = "lease"     // of a slot: different for each reservation
	Holder    = "holder"    // of a slot: "<allocation id>/<task>" when it is known
	Kept      = "kept"      // how long the trash keeps it, as time.Duration prints it; none is until it is emptied
	Passed    = "passed"    // how much of that has passed
	From      = "from"      // of what was adopted: the name that it had before

	// Adopt is the key of a dataset that waits for a volume: a random text that only root of this
	// node has seen. A new volume becomes this dataset, instead of an empty one, if its
	// parameter "adopt" is the key. The tag stays, so that the same call can be repeated.
	Adopt = "adopt"
)

// Dataset is one dataset that exists.
type Dataset struct {
	Name    string
	Path    string // where its files are; empty if it is not mounted
	Place   string // where it is mounted if it is, or something other than a path
	Created time.Time
	Tags    Tags
	Limits
	Usage
}

// IsVolume reports whether it is one that Nomad has, or could have: not in the trash, and not waiting.
func (d Dataset) IsVolume() bool {
	return d.Tags[Kind] == "volume" && d.Name == VolumeName(d.Tags[Namespace], d.Tags[ID])
}

// Waits reports whether it becomes the next volume that has its key (Adopt).
func (d Dataset) Waits() bool { return d.Tags[Adopt] != "" && !d.IsVolume() }

// Left is how long the trash still keeps it, in whole seconds, what of its time has passed by its tags, and whether
// that time has an end.
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
	Data      int64 // what counts against Limits.Data
	Snapshots int64 // held by snapshots alone
}

// Look is what there is below a root at one time.
type Look struct {
	Space    Space
	Datasets []Dataset // that this package made, in order of name
	Problem  error     // why none can be made or used now, as of Check
}

// Space of a file system in bytes.
type Space struct{ Size, Free int64 }

// What errors of this package wrap. Each is one sentence for a person.
var (
	ErrNotFound       = errors.New("it does not exist")
	ErrExists         = errors.New("it exists")
	ErrForeign        = errors.New("it was not made by this plugin")
	ErrInUse          = errors.New("it is in use")
	ErrTooSmall       = errors.New("more than that is used")
	ErrNoSpace        = errors.New("no space is left")
	ErrHasClones      = errors.New("clones depend on it")
	ErrLaterSnapshots = errors.New("later snapshots would be lost")
	ErrUnavailable    = errors.New("it is not available")
)
