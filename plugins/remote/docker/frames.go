// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// frames takes output of the API apart. A frame is 4 bytes of which the first is the stream, 4 bytes of length, and
// a piece of output. In a log that is a time, a space, and a line or a part of one.
type frames struct {
	body       io.Reader
	*logBuffer // nil while nothing arrives
}

// logBuffer is what is needed while there is output. Most logs are silent for most of the time.
type logBuffer struct {
	in    *bufio.Reader
	frame []byte
}

// chunkSize is how much is collected for a reader while there is more to read.
const chunkSize = 64 << 10

// maxPiece is more than engines make of a line: Docker cuts it at 16 KiB.
const maxPiece = 16 << 20

// maxKept is how large a slice may be that is used again, in bytes.
const maxKept = 4 * chunkSize

var logBuffers = sync.Pool{New: func() any { return &logBuffer{in: bufio.NewReaderSize(nil, chunkSize)} }}

// next reads a frame into the buffer. An end inside of a frame is io.ErrUnexpectedEOF, and one of the connection too.
func (f *frames) next() (stream byte, frame []byte, err error) {
	var head [8]byte
	in := f.body
	if f.logBuffer != nil {
		in = f.in
	}
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return 0, nil, err
	}
	if f.logBuffer == nil {
		f.logBuffer = logBuffers.Get().(*logBuffer)
		f.in.Reset(f.body)
	}
	size := binary.BigEndian.Uint32(head[4:])
	if size > maxPiece {
		return 0, nil, fmt.Errorf("a piece of it has %d bytes", size)
	}
	f.frame = slices.Grow(f.frame[:0], int(size))[:size]
	if _, err := io.ReadFull(f.in, f.frame); errors.Is(err, io.EOF) {
		return 0, nil, io.ErrUnexpectedEOF
	} else if err != nil {
		return 0, nil, err
	}
	return head[0], f.frame, nil
}

// more reports whether a part of the next frame has arrived, at least.
func (f *frames) more() bool { return f.logBuffer != nil && f.in.Buffered() > 0 }

// idle gives the buffer back.
func (f *frames) idle() {
	if f.logBuffer == nil {
		return
	}
	f.in.Reset(nil)
	if cap(f.frame) <= maxKept {
		logBuffers.Put(f.logBuffer)
	}
	f.logBuffer = nil
}

// ofEngine is the error for a frame that is no output: Docker says in stream 3 what goes wrong while it reads.
func ofEngine(stream byte, frame []byte) error {
	if stream != 3 {
		return fmt.Errorf("a piece of it is of stream %d", stream)
	}
	return fmt.Errorf("%.1000s", bytes.TrimSpace(frame))
}

// piece is the time of a frame, in nanoseconds, and its output.
func piece(frame []byte) (at int64, data []byte, err error) {
	text, data, ok := bytes.Cut(frame, []byte{' '})
	t, err := time.Parse(time.RFC3339Nano, string(text))
	if !ok || err != nil {
		return 0, nil, fmt.Errorf("a line of it has no time: %.40q", frame)
	}
	return t.UnixNano(), data, nil
}
