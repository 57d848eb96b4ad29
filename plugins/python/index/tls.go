// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// tlsReader follows the records of a TLS connection (RFC 8446, 5.1). Nothing else of a tunnel is visible to a proxy. A
// connection that is cut off usually ends within a record.
type tlsReader struct {
	io.Reader
	counted func(bytes int)
	err     error // of the last Read

	answered bool
	header   []byte
	left     int  // bytes until the end of the record
	unknown  bool // it is not TLS
}

func (r *tlsReader) Read(p []byte) (n int, err error) {
	n, err = r.Reader.Read(p)
	r.err = err
	if n > 0 {
		r.answered = true
		r.counted(n)
		r.follow(p[:n])
	}
	return n, err
}

func (r *tlsReader) follow(p []byte) {
	const length = 5 // of a record's header: type, version (two bytes), length (two bytes)
	for len(p) > 0 && !r.unknown {
		if r.left > 0 {
			n := min(r.left, len(p))
			r.left, p = r.left-n, p[n:]
			continue
		}
		n := min(length-len(r.header), len(p))
		r.header, p = append(r.header, p[:n]...), p[n:]
		if len(r.header) == length {
			r.unknown = r.header[1] != 3
			r.left = int(binary.BigEndian.Uint16(r.header[3:]))
			r.header = r.header[:0]
		}
	}
}

// broken returns how the connection broke off, or nil if it may have ended regularly: servers and routers may also end
// an idle connection by a reset between two records.
func (r *tlsReader) broken() error {
	within := !r.unknown && (r.left > 0 || len(r.header) > 0)
	switch {
	case within && errors.Is(r.err, io.EOF):
		return errors.New("the connection broke off within a message")
	case r.err != nil && !errors.Is(r.err, io.EOF) && (within || r.unknown || !r.answered):
		return fmt.Errorf("the connection broke off: %w", r.err)
	}
	return nil
}
