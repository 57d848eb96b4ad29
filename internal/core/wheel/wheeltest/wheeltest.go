// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package wheeltest makes wheels and package indexes in tests.
package wheeltest

import (
	"crypto/sha256"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// Wheel is a wheel for a test.
type Wheel wheel.Wheel

// File is the wheel's file name.
func (w Wheel) File() string { return wheel.Wheel(w).File() }

// Write writes the wheel to a directory, which it makes if necessary, and returns its SHA-256 in hex.
func (w Wheel) Write(t testing.TB, dir string) string {
	t.Helper()
	content, err := wheel.Wheel(w).Archive()
	must.NoError(t, err)
	must.NoError(t, os.MkdirAll(dir, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(dir, w.File()), content, 0o644))
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// Index serves the wheels of a directory as a package index at <URL>/simple, until the test ends.
func Index(t testing.TB, dir string) *httptest.Server {
	s := httptest.NewServer(wheel.Index(dir))
	t.Cleanup(s.Close)
	return s
}

// FindUV returns wheel.FindUV(as). If that is empty, it skips the test.
func FindUV(t testing.TB, as *syscall.Credential) string {
	t.Helper()
	uv := wheel.FindUV(as)
	if uv == "" {
		t.Skip("there is no uv that the user who builds can run")
	}
	return uv
}
