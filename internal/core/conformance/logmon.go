// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"bytes"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// logmon reads a task's output from two FIFOs, as Nomad's logmon does.
type logmon struct {
	paths   map[string]string
	mu      sync.Mutex
	streams map[string]*bytes.Buffer
	ended   map[string]bool // the stream was opened, and then closed by each writer
}

func newLogmon(stdout, stderr string) (*logmon, error) {
	l := &logmon{
		paths:   map[string]string{"stdout": stdout, "stderr": stderr},
		streams: map[string]*bytes.Buffer{"stdout": {}, "stderr": {}}, ended: map[string]bool{},
	}
	for stream, path := range l.paths {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return nil, err
		}
		go l.follow(stream, path)
	}
	return l, nil
}

func (l *logmon) follow(stream, path string) {
	f, err := os.OpenFile(path, os.O_RDONLY, 0) // waits for a writer
	if err != nil {
		return
	}
	defer f.Close()
	chunk := make([]byte, 64<<10)
	for {
		n, err := f.Read(chunk)
		l.mu.Lock()
		l.streams[stream].Write(chunk[:n])
		if err == io.EOF {
			l.ended[stream] = true
		}
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (l *logmon) read(stream string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams[stream].String()
}

// over says whether both streams were opened and have ended.
func (l *logmon) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended["stdout"] && l.ended["stderr"]
}

// close ends the readers, also of a FIFO that no writer has opened.
func (l *logmon) close() {
	for _, path := range l.paths {
		if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
			f.Close()
		}
	}
}

// reopen reads the pipes again, as for a task that is restarted in place.
func (l *logmon) reopen() {
	for stream, path := range l.paths {
		go l.follow(stream, path)
	}
}
