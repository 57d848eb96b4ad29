// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package gobuild

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestBuild_EndsImmediatelyOnInterrupt(t *testing.T) {
	dir := t.TempDir()
	// a fake go command that exits on SIGINT
	const script = "#!/bin/sh\ntrap 'echo asked >\"$OUT\"; kill $!; exit 1' INT\nsleep 600 & wait\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	out := filepath.Join(dir, "out")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := Build{Env: []string{"OUT=" + out}}.Run(ctx)
	if asked, _ := os.ReadFile(out); err == nil || !strings.Contains(string(asked), "asked") ||
		time.Since(start) > time.Minute {
		t.Errorf("%v after %s; asked: %q", err, time.Since(start), asked)
	}
}
