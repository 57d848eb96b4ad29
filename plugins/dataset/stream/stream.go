// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package stream is the form in which a snapshot travels to another node: a line of JSON that
// says what it is, and the file system's own stream in frames, so that a stream that ends too
// early is never taken for a whole one, whatever the file system's program would say of it.
package stream

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// format is what each header begins with. A change of the form changes it.
const format = "outrider-dataset-1"

// Header says what a stream has.
type Header struct {
	Format  string `json:"format"`
	Backend string `json:"backend"` // whose stream it is: zfs or btrfs

	ID        string `json:"id"` // of the volume, where it comes from
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Class     string `json:"class"`

	Snapshot string `json:"snapshot"`        // what the receiver has in the end
	Since    string `json:"since,omitempty"` // what it must have; empty: the stream is whole

	Capacity  int64  `json:"capacity"`  // of the volume, in bytes
	Snapshots int64  `json:"snapshots"` // what its snapshots may hold besides, in bytes; 0 is no limit
	Schedule  string `json:"schedule,omitempty"`
}

const (
	maxHeader = 64 << 10
	maxFrame  = 1 << 20
)

// ErrTruncated is wrapped by the error of a stream that ends too early.
var ErrTruncated = errors.New("the stream ends too early")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Write writes a stream: the header, what body writes, and the end, unless body fails.
func Write(w io.Writer, h Header, body func(io.Writer) error) error {
	h.Format = format
	line, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return err
	}
	f := &frames{w: w}
	buffered := bufio.NewWriterSize(f, maxFrame)
	if err := body(buffered); err != nil {
		return err
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	_, err = w.Write(binary.BigEndian.AppendUint32(make([]byte, 4), f.sum))
	return err
}

// frames writes each part with its length in front.
type frames struct {
	w   io.Writer
	sum uint32
}

func (f *frames) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), maxFrame)]
		if _, err := f.w.Write(binary.BigEndian.AppendUint32(nil, uint32(len(part)))); err != nil { //nolint:gosec // maxFrame
			return n, err
		}
		if _, err := f.w.Write(part); err != nil {
			return n, err
		}
		f.sum = crc32.Update(f.sum, castagnoli, part)
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

// Read reads the header of a stream. The body has the file system's part: it ends with io.EOF
// only where all of it came as it was sent.
func Read(r io.Reader) (Header, *Body, error) {
	b := bufio.NewReaderSize(r, maxHeader)
	line, err := b.ReadSlice('\n')
	var h Header
	switch {
	case errors.Is(err, io.EOF) && len(line) == 0:
		return h, nil, fmt.Errorf("%w: nothing was sent", ErrTruncated)
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull):
		return h, nil, err
	}
	if json.Unmarshal(line, &h) != nil || err != nil || h.Format == "" {
		return h, nil, errors.New("this is no stream of \"nomad-device-dataset send\"")
	}
	if h.Format != format {
		return h, nil, fmt.Errorf("the stream has format %q, and this version reads %q: use the same version on both nodes",
			h.Format, format)
	}
	return h, &Body{r: b}, nil
}

// Body is the file system's part of a stream. A frame is given out only when what follows it
// has been read, so that the file system does not see its own end where the end of this form is
// missing.
type Body struct {
	r       *bufio.Reader
	frame   []byte // what is left of it to give out
	next    uint32 // length of the next one; 0 is the end
	started bool
	sum     uint32
	count   int64
	err     error
}

// Count is the number of bytes that were read.
func (b *Body) Count() int64 { return b.count }

// Complete reports whether all of it was read, and was as it was sent.
func (b *Body) Complete() bool { return errors.Is(b.err, io.EOF) }

// Err is why not all of it could be read, if that was the reader's fault.
func (b *Body) Err() error {
	if b.Complete() {
		return nil
	}
	return b.err
}

// Read is that of io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	if len(b.frame) == 0 && b.err == nil {
		b.err = b.load()
	}
	if len(b.frame) == 0 || b.err != nil {
		return 0, b.err
	}
	n := copy(p, b.frame)
	b.frame = b.frame[n:]
	b.count += int64(n)
	return n, nil
}

// load reads a frame and what is after it. At the end it returns io.EOF.
func (b *Body) load() error {
	if !b.started {
		b.started = true
		if err := b.header(); err != nil {
			return err
		}
	}
	if b.next == 0 {
		return io.EOF
	}
	frame := make([]byte, b.next)
	if _, err := io.ReadFull(b.r, frame); err != nil {
		return truncated(err)
	}
	b.sum = crc32.Update(b.sum, castagnoli, frame)
	if err := b.header(); err != nil {
		return err
	}
	b.frame = frame
	return nil
}

// header reads the length of the next frame. At the end it checks the sum.
func (b *Body) header() error {
	length, err := b.word()
	if err != nil {
		return err
	}
	changed := length > maxFrame
	if length == 0 {
		sum, err := b.word()
		if err != nil {
			return err
		}
		changed = sum != b.sum
	}
	if changed {
		return errors.New("the stream was changed on its way")
	}
	b.next = length
	return nil
}

func (b *Body) word() (uint32, error) {
	var word [4]byte
	_, err := io.ReadFull(b.r, word[:])
	return binary.BigEndian.Uint32(word[:]), truncated(err)
}

func truncated(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrTruncated
	}
	return err
}
