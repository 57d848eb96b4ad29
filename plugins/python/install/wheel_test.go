// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

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

// madeWheel is a wheel for a test.
type madeWheel wheel.Wheel

func (w madeWheel) File() string { return wheel.Wheel(w).File() }

// Write puts the wheel into a directory, which it makes, and returns its SHA-256 in hex.
func (w madeWheel) Write(t testing.TB, dir string) string {
	t.Helper()
	content, err := wheel.Wheel(w).Archive()
	must.NoError(t, err)
	must.NoError(t, os.MkdirAll(dir, 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(dir, w.File()), content, 0o644))
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// wheelIndex serves the wheels of a directory as a package index at <URL>/simple, until the test ends.
func wheelIndex(t testing.TB, dir string) *httptest.Server {
	s := httptest.NewServer(wheel.Index(dir))
	t.Cleanup(s.Close)
	return s
}

// findUV is the uv that tests use: $UV, or else that of the PATH.
func findUV(t testing.TB, as *syscall.Credential) string {
	t.Helper()
	uv := wheel.FindUV(as)
	if uv == "" {
		t.Skip("there is no uv that the user who builds can run")
	}
	return uv
}
