// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build embed_supervisor

package upload

import _ "embed"

// amd64 and arm64 are the static programs (cmd/outrider-shim), which `mage build` makes first.
//
//go:embed embedded/outrider-shim-amd64.gz
var amd64 []byte

//go:embed embedded/outrider-shim-arm64.gz
var arm64 []byte

// own are the shims of this build.
var own = programs{"amd64": {packed: amd64}, "arm64": {packed: arm64}}

// Main does nothing: the shims are programs of their own.
func Main() {}
