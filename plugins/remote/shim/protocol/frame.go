// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package protocol

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// How many bytes a frame of data, and the chunk of a FrameOutput, have at most.
const (
	MaxFrame  = 64 << 10
	MaxOutput = 256 << 10
)

// Frame is a piece of a stream: a header of 5 bytes (type, and length as a big-endian number),
// then the bytes. A FrameOutput begins with a place of 17 bytes.
type Frame struct {
	Type byte
	Data []byte // valid until the next FrameReader.Read
}

// The types of frames.
const (
	FrameRequest = 'q' // a Request, the first one of an exec
	FrameStdin   = 'i' // empty: the end of the input
	FrameResize  = 'w' // an endpoint.WindowSize
	FrameStdout  = 'o'
	FrameStderr  = 'e'
	FrameOutput  = 'l' // of logs: place and bytes
	FrameEnd     = 'x' // an End, the last one
)

// End ends the stream of logs or of an exec. A stream that ends without it was cut off.
type End struct {
	Exit  *task.Exit `json:"exit,omitempty"`
	Error *Error     `json:"error,omitempty"`
}

const headerSize, placeSize = 5, 17

// WriteFrame writes a frame with one call of Write.
func WriteFrame(w io.Writer, typ byte, parts ...[]byte) error {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	b := make([]byte, headerSize, headerSize+size)
	b[0] = typ
	binary.BigEndian.PutUint32(b[1:], uint32(size))
	for _, p := range parts {
		b = append(b, p...)
	}
	_, err := w.Write(b)
	return err
}

// WriteJSON writes a frame with a value.
func WriteJSON(w io.Writer, typ byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return WriteFrame(w, typ, b)
}

// OutputSpace is how many bytes a FrameOutput has before those of its chunk.
const OutputSpace = headerSize + placeSize

// FillOutput makes a FrameOutput of b, whose chunk is in its place already. End is the chunk's.
func FillOutput(b []byte, end endpoint.Place, gap bool) {
	b[0] = FrameOutput
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-headerSize))
	place := b[headerSize:OutputSpace]
	binary.BigEndian.PutUint64(place, uint64(end.File))
	binary.BigEndian.PutUint64(place[8:], uint64(end.Offset))
	place[16] = 0
	if gap {
		place[16] = 1
	}
}

// Output is the chunk of a FrameOutput.
func (f Frame) Output() (endpoint.Chunk, error) {
	if f.Type != FrameOutput || len(f.Data) < placeSize {
		return endpoint.Chunk{}, fmt.Errorf("frame %q of %d bytes is no output", f.Type, len(f.Data))
	}
	return endpoint.Chunk{
		Data: f.Data[placeSize:], Gap: f.Data[16] == 1,
		End: endpoint.Place{
			File: int64(binary.BigEndian.Uint64(f.Data)), Offset: int64(binary.BigEndian.Uint64(f.Data[8:])),
		},
	}, nil
}

// FrameReader reads frames. The other side is not trusted to send short ones.
type FrameReader struct {
	R          io.Reader
	MaxRequest int     // how long a FrameRequest may be; only a shim reads them
	buf        *[]byte // of the last frame
}

// buffers are those that no reader holds: one that waits for a frame, as most do, has none.
var buffers = sync.Pool{New: func() any { b := make([]byte, MaxOutput+placeSize); return &b }}

// Read returns the next frame, valid until the next call, io.EOF at the end between two.
func (r *FrameReader) Read() (Frame, error) {
	if r.buf != nil {
		buffers.Put(r.buf)
		r.buf = nil
	}
	var head [headerSize]byte
	if _, err := io.ReadFull(r.R, head[:]); err != nil {
		return Frame{}, err
	}
	size, limit := int(binary.BigEndian.Uint32(head[1:])), MaxOutput+placeSize
	switch head[0] {
	case FrameRequest:
		limit = r.MaxRequest
	case FrameEnd:
		limit = MaxFrame
	}
	if size > limit {
		return Frame{}, fmt.Errorf("frame %q of %d bytes is too long", head[0], size)
	}
	f := Frame{Type: head[0]}
	if size > MaxOutput+placeSize {
		f.Data = make([]byte, size)
	} else {
		r.buf = buffers.Get().(*[]byte)
		f.Data = (*r.buf)[:size]
	}
	if _, err := io.ReadFull(r.R, f.Data); err != nil {
		return Frame{}, io.ErrUnexpectedEOF
	}
	return f, nil
}
