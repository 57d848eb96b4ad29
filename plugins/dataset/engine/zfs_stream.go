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
	"path/filepath"

	"github.com/outrider-dev/outrider/plugins/dataset/inuse"
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
	return z.stream(ctx, nil, w, append(args, full)...)
}

// Receive is part of Backend. A dataset that is new comes to its name when it is whole. In
// .new it has no mount point to inherit.
func (z *zfs) Receive(ctx context.Context, name string, r io.Reader) error {
	err := z.receive(ctx, name, r)
	if err != nil && ctx.Err() == nil {
		_, _ = io.Copy(io.Discard, r) // the error is that of the stream
	}
	return err
}

func (z *zfs) receive(ctx context.Context, name string, r io.Reader) error {
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
	r = io.MultiReader(bytes.NewReader(head), r)
	p, err := z.get(ctx, name)
	if err == nil {
		users, err := inuse.OfMount(ctx, p.full, "")
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return inUse(full, users)
		}
		if _, snapshot, _ := bytes.Cut(bytes.TrimRight(head[streamName:], "\x00"), []byte("@")); z.there(ctx,
			full+"@"+string(snapshot)) {
			return fmt.Errorf("snapshot %s@%s: %w", full, snapshot, ErrExists)
		}
		return z.stream(ctx, r, io.Discard, "receive", "-u", full)
	}
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	part, err := z.full(NewName(filepath.Base(name) + ".part"))
	if err != nil {
		return err
	}
	if err := z.makeParent(ctx, part); err != nil {
		return err
	}
	if z.there(ctx, part) { // of one that was killed
		if err := z.whileBusy(ctx, "destroy", "-r", part); err != nil {
			return err
		}
	}
	if err = z.stream(ctx, r, io.Discard, "receive", "-u", part); err == nil {
		_, err = z.run(ctx, "set", tagProperty+"={}", part)
	}
	if err == nil {
		err = z.makeParent(ctx, full)
	}
	if err == nil {
		err = z.whileBusy(ctx, "rename", part, full)
	}
	if err != nil && z.there(context.WithoutCancel(ctx), part) {
		err = also(err, z.whileBusy(context.WithoutCancel(ctx), "destroy", "-r", part))
	}
	return err
}

// streamHead is the size of a stream's first record, and streamName where it has the snapshot's name.
const (
	streamHead = 312
	streamName = 56
)

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
