// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build embed_supervisor

package supervisor

import _ "embed"

// embedded is the small static supervisor binary, which `go tool mage build` builds first.
//
//go:embed embedded/outrider-supervisor
var embedded []byte
