// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Send is part of Backend.
func (b *btrfs) Send(ctx context.Context, name, snapshot, since string, w io.Writer) error {
	_, path, err := b.findSnapshot(name, snapshot)
	if err != nil {
		return err
	}
	args := []string{"send", "-q"}
	if since != "" {
		_, parent, err := b.findSnapshot(name, since)
		if err != nil {
			return err
		}
		args = append(args, "-p", parent)
	}
	return b.failed("send", name, b.program.pipe(ctx, nil, w, append(args, path)...))
}

// Receive is part of Backend. A dataset that it makes has neither limits nor tags. What was
// changed in a dataset since its last snapshot is lost when that is continued.
func (b *btrfs) Receive(ctx context.Context, name string, r io.Reader) error {
	in := bufio.NewReaderSize(r, 1<<16)
	err := b.receive(ctx, name, in)
	if _, drain := io.Copy(io.Discard, in); err == nil && drain != nil {
		err = b.failed("receive", name, drain)
	}
	return err
}

func (b *btrfs) receive(ctx context.Context, name string, in *bufio.Reader) error {
	changes, err := changesAlone(in)
	if err != nil {
		return b.failed("receive", name, err)
	}
	var r *record
	var s *stage
	if changes {
		if r, err = b.find(name); errors.Is(err, ErrNotFound) {
			return fmt.Errorf("the stream has only what changed since a snapshot that was sent before: %w", err)
		}
		if err == nil {
			s, err = b.openStage(ctx, name)
		}
	} else {
		s, err = b.stage(ctx, name)
	}
	if err != nil {
		return err
	}
	defer s.close()
	return b.failed("receive", name, b.receiveOn(ctx, s, r, in))
}

// receiveOn receives a snapshot on a stage, and makes or replaces the dataset with its content.
func (b *btrfs) receiveOn(ctx context.Context, s *stage, r *record, in *bufio.Reader) error {
	dir := s.path("received")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := b.program.pipe(ctx, in, io.Discard, "receive", "--quiet", "--chroot", dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) != 1 || !component.MatchString(entries[0].Name()) {
		return errors.New("the stream is not that of one snapshot with a plain name")
	}
	snapshot := entries[0].Name()
	received := filepath.Join(dir, snapshot)
	if r != nil {
		return b.continueFrom(ctx, s, r, snapshot, received)
	}
	if err := b.copy(ctx, nil, received, s.data()); err != nil {
		return err
	}
	made, err := subvolume(s.data())
	if err != nil {
		return err
	}
	r = &record{Subvolume: made.id, Key: made.id, Created: made.created}
	if err := b.addSnapshot(ctx, r, received, b.snapshotPath(r, snapshot)); err != nil {
		return err
	}
	return s.place(r)
}

// continueFrom brings a dataset to a snapshot that is based on one of its own. The snapshot appears
// last: without it the stream can be received again.
func (b *btrfs) continueFrom(ctx context.Context, s *stage, r *record, snapshot, received string) error {
	if exists(b.snapshotPath(r, snapshot)) {
		return fmt.Errorf("snapshot %s: %w", snapshot, ErrExists)
	}
	info, err := subvolume(received)
	if err != nil {
		return err
	}
	names, err := b.snapshotNames(r)
	if err != nil {
		return err
	}
	based := false
	for _, name := range names {
		base, err := subvolume(b.snapshotPath(r, name))
		if err != nil {
			return err
		}
		based = based || base.uuid == info.parent
	}
	if !based {
		return errors.New("the stream is based on a snapshot of another dataset")
	}
	if err := b.unused(ctx, b.path(s.name)); err != nil {
		return err
	}
	if err := s.replace(ctx, received, r); err != nil {
		return err
	}
	return b.addSnapshot(ctx, r, received, b.snapshotPath(r, snapshot))
}

// The format is in fs/btrfs/send.h of Linux. A header of the stream has a version after the
// magic, that of a command its length, number and checksum.
const (
	streamMagic   = "btrfs-stream\x00"
	streamHeader  = len(streamMagic) + 4
	commandHeader = 4 + 2 + 4
	commandWhole  = 1 // BTRFS_SEND_C_SUBVOL
)

// changesAlone reports whether a stream has the changes since another snapshot only.
func changesAlone(r *bufio.Reader) (bool, error) {
	start, err := r.Peek(streamHeader + commandHeader)
	if err != nil || !bytes.HasPrefix(start, []byte(streamMagic)) {
		return false, errors.New("this is not a stream of btrfs send")
	}
	return binary.LittleEndian.Uint16(start[streamHeader+4:]) != commandWhole, nil
}
