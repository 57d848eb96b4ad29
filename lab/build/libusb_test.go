// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestLibusb_IsUsedIfPossible(t *testing.T) {
	goTool, err := exec.LookPath("go")
	must.NoError(t, err)
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	for _, tc := range []struct {
		name  string
		tools map[string]string // scripts on the PATH, by name, in addition to go
		b     Builder
		cgo   string
		want  string // the error; empty: libusb is used
	}{
		{name: "headers and compiler", tools: map[string]string{"gcc": "exit 0",
			"pkg-config": `[ "$*" = "--exists libusb-1.0" ]`}},
		{name: "no headers", tools: map[string]string{"gcc": "exit 0", "pkg-config": "exit 1"},
			want: "pkg-config or libusb-1.0's headers are not installed"},
		{name: "no pkg-config", tools: map[string]string{"gcc": "exit 0"},
			want: "pkg-config or libusb-1.0's headers are not installed"},
		{name: "no compiler", tools: map[string]string{"pkg-config": "exit 0"},
			want: "cgo is off, or no C compiler is installed"},
		{name: "cgo turned off", tools: map[string]string{"gcc": "exit 0", "pkg-config": "exit 0"}, cgo: "0",
			want: "cgo is off, or no C compiler is installed"},
		{name: "static build", tools: map[string]string{"gcc": "exit 0", "pkg-config": "exit 0"}, b: Builder{Static: true},
			want: "a static build, which runs on any Linux"},
		{name: "another architecture", tools: map[string]string{"gcc": "exit 0", "pkg-config": "exit 0"},
			b:    Builder{Arch: other},
			want: "cross-compiled on " + runtime.GOARCH + " for " + other},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := t.TempDir()
			must.NoError(t, os.Symlink(goTool, filepath.Join(path, "go")))
			for name, script := range tc.tools {
				must.NoError(t, os.WriteFile(filepath.Join(path, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
			}
			t.Setenv("PATH", path)
			t.Setenv("CC", "")
			t.Setenv("CGO_ENABLED", tc.cgo)
			tc.b.Root = t.TempDir()
			got := ""
			if err := tc.b.Libusb(t.Context()); err != nil {
				got = err.Error()
			}
			test.Eq(t, tc.want, got)
		})
	}
}
