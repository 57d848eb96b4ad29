// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
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

// LockDir is where the locks of a node are.
const LockDir = "/run/outrider/dataset/locks"

// Lock waits until no other goroutine or process changes what key stands for, a volume's or
// slot's id. The lock ends with unlock or with the process.
func (e *Engine) Lock(ctx context.Context, key string) (unlock func(), err error) {
	if key == "" || strings.ContainsAny(key, "/\x00") || strings.HasPrefix(key, ".") {
		return nil, fmt.Errorf("%q can't be the id of a dataset", key)
	}
	dir, err := owndir.Make(e.Locks, 0o700)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := filepath.Join(e.Locks, key)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("failed to open the lock of %q: %w", key, err)
		}
		for err = unix.EWOULDBLOCK; err != nil; {
			if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
				break
			}
			select {
			case <-ctx.Done():
				f.Close()
				return nil, fmt.Errorf("dataset %q is being changed by another process: %w", key, ctx.Err())
			case <-time.After(10 * time.Millisecond):
			}
		}
		// the former holder removed the file if it was not waited for
		locked, err := f.Stat()
		if now, nowErr := os.Lstat(path); err == nil && nowErr == nil && os.SameFile(locked, now) {
			return func() {
				_ = os.Remove(path)
				f.Close()
			}, nil
		}
		f.Close()
	}
}

// SweepLocks removes the files of locks that killed processes have left.
func (e *Engine) SweepLocks() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	files, _ := os.ReadDir(e.Locks)
	for _, f := range files {
		if unlock, err := e.Lock(now, f.Name()); err == nil {
			unlock()
		}
	}
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

// NewLock is the key of the lock for a dataset that is received or copied: the id that it is for. What
// follows a dot is a part of it.
func NewLock(name string) string {
	_, base, _ := strings.Cut(name, "/")
	id, _, _ := strings.Cut(base, ".")
	return id
}

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
