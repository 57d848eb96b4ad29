// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"strings"
	"sync"
)

const tailSize = 8 << 10

// tail keeps the end of the data that is written to it.
type tail struct {
	mu   sync.Mutex // guards data
	data []byte
}

// Write implements io.Writer. It never fails: the machine would stop if nobody took its output.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if extra := len(t.data) - tailSize; extra > 0 {
		t.data = append(t.data[:0], t.data[extra:]...)
	}
	return len(p), nil
}

// String returns the data that was kept, without carriage returns.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ReplaceAll(string(t.data), "\r", "")
}
