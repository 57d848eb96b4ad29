// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

//go:build !embed_supervisor

package supervisor

// embedded is nil in a plain go build or go test, which do not include the small binary. The program that imports this
// package then runs the roles itself.
var embedded []byte
