// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package wheeltest makes wheels and package indexes for tests.
package wheeltest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// Wheel is a wheel for a test.
type Wheel wheel.Wheel

// File is the wheel's file name.
func (w Wheel) File() string { return wheel.Wheel(w).File() }

// Bytes is the archive.
func (w Wheel) Bytes(t testing.TB) []byte {
	t.Helper()
	b, err := wheel.Wheel(w).Archive()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Write puts the wheel into a directory, which it makes, and returns its SHA-256 in hex.
func (w Wheel) Write(t testing.TB, dir string) string {
	t.Helper()
	content := w.Bytes(t)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, w.File()), content, 0o644); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// UV is the uv that tests use: $UV, or else that of the PATH. If there is none that as can run (nil is this
// process's user), the test is skipped.
func UV(t testing.TB, as *syscall.Credential) string {
	t.Helper()
	uv := wheel.FindUV(as)
	if uv == "" {
		t.Skip("there is no uv that the user who builds can run")
	}
	return uv
}
