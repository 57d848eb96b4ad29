// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !embed_supervisor

package upload

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// own is this very program, if the shims were not built in (go build, go test).
var own = programs{runtime.GOARCH: {plain: func() (io.ReadCloser, error) { return os.Open("/proc/self/exe") }}}

// Main runs the shim if the program was started as one, and does not return then. A program that is built without the
// shims calls it first, a test's TestMain too.
func Main() {
	supervisor.Main()
	if strings.HasPrefix(filepath.Base(os.Args[0]), "outrider-shim-") {
		os.Exit(shim.Main(os.Args[1:]))
	}
}
