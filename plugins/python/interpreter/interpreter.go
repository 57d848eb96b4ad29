// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package interpreter finds the Python interpreters of a node, and chooses among them.
package interpreter

// Interpreter is a Python interpreter of the node that can be run.
type Interpreter struct {
	Path           string // what tasks are started with, see preferred
	Real           string // without symbolic links
	Version        string // "3.11.2", "3.13.0rc1"
	Minor          string // "3.11"
	Implementation string // "cpython", "pypy"
	Platform       string // "linux-x86_64"
	Libc           string // "gnu", "musl"
	FreeThreaded   bool   // built without the GIL

	// Names are all paths under which it was found, Path among them.
	Names []string

	// File is that of Real when it was listed: another inode, size or time is another interpreter.
	File FileID
}

// FileID identifies a file that was not changed.
type FileID struct {
	Inode   uint64
	Size    int64
	ModTime int64 // nanoseconds since 1970
}
