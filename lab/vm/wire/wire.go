// Package wire is what a VM's host and guest say to each other over a virtio
// serial port: first a line of the guest's, Ready, then a yamux session, in which
// each stream that the host opens is one request.
//
// A stream begins with a line of the host's, Request. One that dials goes on with
// a line of the guest's, Dialed, and then is the connection. One that runs a
// command goes on with frames in both directions, and ends with Exit. A stream
// that the host closes earlier ends what it has started.
package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/yamux"
)

// Port is the name of the virtio serial port.
const Port = "outrider.vm"

// Ready is the first that the guest says, as soon as it can run commands or knows
// that it never will.
type Ready struct {
	Kernel string `json:"kernel,omitempty"` // release, as `uname -r` says it
	Error  string `json:"error,omitempty"`
}

// Request asks for one of two.
type Request struct {
	Run  *Run   `json:"run,omitempty"`
	Dial string `json:"dial,omitempty"` // a TCP address in the guest
}

// Run asks for a command.
type Run struct {
	Args  []string `json:"args"`
	Env   []string `json:"env"`
	Dir   string   `json:"dir"`
	Stdin bool     `json:"stdin"` // else it is /dev/null

	// Terminal, where not nil, is the size of the terminal to run it on. Its
	// output is all Stdout then.
	Terminal *Size `json:"terminal,omitempty"`
}

// Size of a terminal.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Exit is how a command ended.
type Exit struct {
	Code   int    `json:"code"`
	Signal int    `json:"signal,omitempty"` // the code means nothing then
	Error  string `json:"error,omitempty"`  // it did not start
}

// Dialed is the answer to a Dial.
type Dialed struct {
	Error string `json:"error,omitempty"`
}

// Kind says what is in a frame.
type Kind byte

const (
	Stdin    Kind = 'i' // bytes; none of them ends it
	Stdout   Kind = 'o' // bytes
	Stderr   Kind = 'e' // bytes
	Resized  Kind = 'r' // Size
	Signaled Kind = 's' // a decimal number, for the command's process group
	Exited   Kind = 'x' // Exit; the last frame
)

const (
	header    = 5       // kind, length in big-endian order
	longest   = 1 << 20 // of a frame's bytes; longer writes are several frames
	longLine  = 1 << 20
	keepAlive = 10 * time.Second
	patience  = 90 * time.Second // an emulated machine beside a compiler is slow
)

// WriteFrame writes one frame, in a single Write, so that several goroutines may
// share w if its Write is atomic.
func WriteFrame(w io.Writer, k Kind, data []byte) error {
	for {
		n := min(len(data), longest)
		b := make([]byte, header, header+n)
		b[0] = byte(k)
		binary.BigEndian.PutUint32(b[1:], uint32(n))
		if _, err := w.Write(append(b, data[:n]...)); err != nil {
			return err
		}
		if data = data[n:]; len(data) == 0 {
			return nil
		}
	}
}

// ReadFrame reads one frame.
func ReadFrame(r io.Reader) (Kind, []byte, error) {
	var h [header]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > longest {
		return 0, nil, fmt.Errorf("a frame of %d bytes", n)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return 0, nil, err
	}
	return Kind(h[0]), data, nil
}

// Writer makes every Write a frame of one kind.
type Writer struct {
	W    io.Writer
	Kind Kind
}

// Write implements io.Writer.
func (w Writer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := WriteFrame(w.W, w.Kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteLine writes v as a line of JSON.
func WriteLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// ReadLine reads a line of JSON into v, and not a byte beyond it.
func ReadLine(r io.Reader, v any) error {
	var line bytes.Buffer
	one := make([]byte, 1)
	for line.Len() < longLine {
		if _, err := io.ReadFull(r, one); err != nil {
			return err
		}
		if one[0] == '\n' {
			return json.Unmarshal(line.Bytes(), v)
		}
		line.WriteByte(one[0])
	}
	return errors.New("a line without an end")
}

// Config is that of both ends of the session. A peer that is silent for longer
// than the patience ends it.
func Config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.KeepAliveInterval = keepAlive
	c.ConnectionWriteTimeout = patience
	c.StreamOpenTimeout = patience
	c.StreamCloseTimeout = patience
	c.MaxStreamWindowSize = 1 << 20
	c.LogOutput = io.Discard // what ends a session is told where it is used
	return c
}

// Buffered reads frames of a stream with few reads.
func Buffered(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 64<<10) }
