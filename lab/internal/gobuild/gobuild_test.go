// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package gobuild

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestBuild_ReportsItsProgress(t *testing.T) {
	var told []string
	progress := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	b := Build{Packages: 9, Progress: progress}
	text := "a/b\ngo: downloading a.example/b v1.0.0\n# a/d\n./x.go:1:2: undefined: y\na/e\n"
	messages := b.follow(bufio.NewScanner(strings.NewReader(text)))
	test.SliceEqOp(t, []string{"# a/d", "./x.go:1:2: undefined: y"}, messages, test.Sprint("messages"))
	test.SliceEqOp(t, []string{"packages compiled: 1 of at most 9"}, told, test.Sprint("more than one at a time"))
}

func TestBuild_EndsAtOnceOnInterrupt(t *testing.T) {
	dir := t.TempDir()
	// a go command that ends when it is asked to
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

func TestBuild_EndsAfterALongLine(t *testing.T) {
	dir := t.TempDir()
	const script = "#!/bin/sh\nhead -c 1000000 /dev/zero | tr '\\0' x >&2\nexit 1\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := (Build{}).Run(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("got %v, and the context has ended: %v", err, ctx.Err())
	}
}
