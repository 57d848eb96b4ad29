package install

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// tlsReader looks where the records of a TLS connection begin and end (RFC 8446, 5.1): of what is in a tunnel, no
// more than this can be seen from outside. One that is cut off mostly ends within a record.
type tlsReader struct {
	io.Reader
	heard    func(bytes int)
	answered bool
	waited   time.Duration // by the last Read
	err      error         // of the reader, io.EOF if the other end closed the connection

	header  []byte
	left    int // of the record
	another bool
}

func (r *tlsReader) Read(p []byte) (int, error) {
	begun := time.Now()
	n, err := r.Reader.Read(p)
	r.waited = time.Since(begun)
	if n > 0 {
		r.answered = true
		r.heard(n)
		r.follow(p[:n])
	}
	r.err = err
	return n, err
}

func (r *tlsReader) follow(p []byte) {
	const length = 5 // of a record's header: its type, a version of two bytes, its length
	for len(p) > 0 && !r.another {
		if r.left > 0 {
			n := min(r.left, len(p))
			r.left, p = r.left-n, p[n:]
			continue
		}
		n := min(length-len(r.header), len(p))
		r.header, p = append(r.header, p[:n]...), p[n:]
		if len(r.header) == length {
			r.another = r.header[1] != 3 // it is not TLS
			r.left = int(binary.BigEndian.Uint16(r.header[3:]))
			r.header = r.header[:0]
		}
	}
}

// broken says how the connection broke off, nil if it may have ended as it was meant to. A reset between two messages
// is one way in which a server, or a router on the way, ends an idle connection.
func (r *tlsReader) broken() error {
	within := !r.another && (r.left > 0 || len(r.header) > 0)
	switch {
	case r.err == nil: // it was not the other end
	case errors.Is(r.err, io.EOF):
		if within {
			return errors.New("the connection broke off within a message")
		}
	case within || r.another || !r.answered:
		return fmt.Errorf("the connection broke off: %w", r.err)
	}
	return nil
}
