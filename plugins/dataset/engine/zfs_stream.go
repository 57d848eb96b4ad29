// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Send is part of Backend. The stream has no properties.
func (z *zfs) Send(ctx context.Context, name, snapshot, since string, w io.Writer) error {
	full, err := z.snapshot(ctx, name, snapshot)
	if err != nil {
		return err
	}
	args := []string{"send"}
	if since != "" {
		from, err := z.snapshot(ctx, name, since)
		if err != nil {
			return err
		}
		args = append(args, "-i", from)
	}
	return ours(z.pipe(ctx, nil, w, append(args, full)...))
}

// Receive is part of Backend. Below .new a dataset has no mount point to inherit, and is
// of this package before it has tags.
func (z *zfs) Receive(ctx context.Context, name string, r io.Reader) error {
	full, err := z.full(name)
	if err != nil {
		return err
	}
	head := make([]byte, streamHead)
	if _, err := io.ReadFull(r, head); err != nil {
		return fmt.Errorf("the stream ends before it begins: %w", err)
	}
	if err := plainStream(head); err != nil {
		return err
	}
	switch p, err := z.get(ctx, name); {
	case err == nil:
		mounted, err := ownMounts()
		if err != nil {
			return err
		}
		if at := mountsOf(mounted, p.full); len(at) > 0 {
			return fmt.Errorf("dataset %s is mounted at %s: %w", full, at[0].Mountpoint, ErrInUse)
		}
	case !errors.Is(err, ErrNotFound):
		return err
	default:
		if _, err := z.makeParent(ctx, full); err != nil {
			return err
		}
	}
	return ours(z.pipe(ctx, io.MultiReader(bytes.NewReader(head), r), io.Discard, "receive", "-u", full))
}

// streamHead is how much of a stream plainStream needs.
const streamHead = 40

// plainStream returns an error unless a stream begins as that of one file system without
// properties, which could say where it is mounted: struct dmu_replay_record in zfs_ioctl.h.
func plainStream(head []byte) error {
	const magic, plain, fileSystem = 0x2F5bacbac, 1, 2
	var order binary.ByteOrder = binary.LittleEndian
	if order.Uint64(head[8:]) != magic {
		order = binary.BigEndian
	}
	switch {
	case order.Uint32(head) != 0 || order.Uint64(head[8:]) != magic:
		return errors.New("this is no stream of zfs send")
	case order.Uint64(head[16:])&3 != plain:
		return errors.New("the stream has properties or several datasets: send it without -p and -R")
	case order.Uint32(head[32:]) != fileSystem:
		return errors.New("the stream is not that of a file system")
	}
	return nil
}
