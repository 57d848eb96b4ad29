// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !embed_supervisor

package supervisor

// embedded is nil if the small binary was not built in (go build, go test): the
// program that imports this package runs the roles itself.
var embedded []byte
