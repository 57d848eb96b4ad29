// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package term

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// Lines lets several writers share one output without breaking each other's lines.
type Lines struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

// NewLines returns Lines that write to w.
func NewLines(w io.Writer) *Lines { return &Lines{w: w} }

// Print writes one line after its label, which may be empty.
func (l *Lines) Print(label, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if label != "" {
		line = label + " | " + line
	}
	fmt.Fprintln(l.w, line)
}

// Writer returns a writer that prints whole lines after the label. Close prints an incomplete last line.
func (l *Lines) Writer(label string) io.WriteCloser { return &lineWriter{l: l, label: label} }

type lineWriter struct {
	l     *Lines
	label string
	rest  []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		w.l.Print(w.label, string(w.rest[:i]))
		w.rest = w.rest[i+1:]
	}
}

func (w *lineWriter) Close() error {
	if len(w.rest) > 0 {
		w.l.Print(w.label, string(w.rest))
		w.rest = nil
	}
	return nil
}
