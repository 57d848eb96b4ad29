// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Engine is a backend with what all backends have in common.
type Engine struct {
	Backend

	// Locks is a directory that only root can change, the same for all processes that use
	// this root.
	Locks string
}

// backends make a Backend of its program and its root, and look at nothing.
var backends = map[string]func(program, root string) (Backend, error){
	"btrfs": func(program, root string) (Backend, error) { return NewBtrfs(program, root), nil },
	"zfs":   NewZFS,
}

// Open returns the engine of a backend ("zfs", "btrfs") below a root, by its program. It
// looks at nothing, which is for Check.
func Open(backend, program, root string) (*Engine, error) {
	open, known := backends[backend]
	if !known {
		return nil, fmt.Errorf("there is no backend %q", backend)
	}
	b, err := open(program, root)
	if err != nil {
		return nil, err
	}
	return &Engine{Backend: b, Locks: LockDir}, nil
}

// Find returns a dataset that has these tags. One that has others belongs to somebody else:
// ErrForeign.
func (e *Engine) Find(ctx context.Context, name string, tags Tags) (Dataset, error) {
	d, err := e.Get(ctx, name)
	if err != nil {
		return Dataset{}, err
	}
	for tag, want := range tags {
		if have := d.Tags[tag]; have != want {
			return Dataset{}, fmt.Errorf("dataset %s is that of %s %q, not %q: %w", name, tag, have, want, ErrForeign)
		}
	}
	return d, nil
}

// The folders below a root that no namespace can be called.
const (
	slotsDir    = ".slots"
	trashDir    = ".trash"
	newDir      = ".new"
	receivedDir = ".received"
)

// VolumeName is the name of a volume's dataset.
func VolumeName(namespace, id string) string { return namespace + "/" + id }

// SlotName is the name of the dataset of one reservation of a slot.
func SlotName(slot, lease string) string { return slotsDir + "/" + slot + "." + lease }

// NewName is the name under which a dataset is received or copied.
func NewName(id string) string { return newDir + "/" + id }

// ReceivedName is the name of what was received whole from another node, until it becomes a
// volume. The id is that of the volume where it comes from.
func ReceivedName(id string) string { return receivedDir + "/" + id }

// Received reports whether a dataset of this name was received and waits to become a volume.
func Received(name string) bool { return strings.HasPrefix(name, receivedDir+"/") }

// InNew reports whether a dataset of this name is being received or copied, or is left over.
func InNew(name string) bool { return strings.HasPrefix(name, newDir+"/") }

// Discard puts a dataset into the trash, for so long; 0 is until a person empties it. The
// caller holds its lock. Of two calls for one dataset the second finds nothing: ErrNotFound.
// If it is in use, nothing changes: ErrInUse. A call that was killed may leave the tags Trashed,
// From and Expires at a dataset that is where it was; Keep removes them.
func (e *Engine) Discard(ctx context.Context, name string, keep time.Duration) error {
	now := time.Now().UTC()
	tags := Tags{Trashed: now.Format(time.RFC3339), From: name, Expires: ""}
	if keep > 0 {
		tags[Expires] = now.Add(keep).Format(time.RFC3339)
	}
	if err := e.Tag(ctx, name, tags); err != nil {
		return err
	}
	_, base, _ := strings.Cut(name, "/")
	err := e.Rename(ctx, name, fmt.Sprintf("%s/%s.%s", trashDir, base, now.Format("20060102T150405.000Z")))
	if err != nil {
		return errors.Join(err, e.Keep(context.WithoutCancel(ctx), name))
	}
	return nil
}

// Keep makes a dataset one that is not to be discarded.
func (e *Engine) Keep(ctx context.Context, name string) error {
	return e.Tag(ctx, name, Tags{Trashed: "", From: "", Expires: ""})
}

// TrashLock is the key of the lock for a dataset in the trash: its own, so that destroying it
// does not hold up the volume or slot that it was.
func TrashLock(name string) string {
	_, base, _ := strings.Cut(name, "/")
	return base
}

// InTrash reports whether a dataset of this name is in the trash.
func InTrash(name string) bool { return strings.HasPrefix(name, trashDir+"/") }
