// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"io"
	"strings"
	"sync"
)

const tailSize = 8 << 10

// tail keeps the end of what is written to it, and may pass everything on.
type tail struct {
	also io.Writer // may be nil

	mu   sync.Mutex // guards data
	data []byte
}

func newTail(also io.Writer) *tail { return &tail{also: also} }

// Write implements io.Writer. It never fails: it must not stop the machine.
func (t *tail) Write(p []byte) (int, error) {
	if t.also != nil {
		t.also.Write(p)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if extra := len(t.data) - tailSize; extra > 0 {
		t.data = append(t.data[:0], t.data[extra:]...)
	}
	return len(p), nil
}

// String is the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ReplaceAll(string(t.data), "\r", "")
}
