// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"encoding/base64"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// seccompFilter decodes the program's filter for applyFilter. It returns nil if the program has none.
func seccompFilter(text string) (*unix.SockFprog, *Error) {
	if text == "" {
		return nil, nil
	}
	b, err := base64.StdEncoding.DecodeString(text)
	count := len(b) / unix.SizeofSockFilter
	if err != nil || count == 0 || count > task.MaxSeccomp || len(b)%unix.SizeofSockFilter != 0 {
		return nil, refuse(unix.EINVAL, "the task's seccomp filter is invalid")
	}
	filter := make([]unix.SockFilter, count) // aligned, unlike b
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&filter[0])), len(b)), b)
	return &unix.SockFprog{Len: uint16(count), Filter: &filter[0]}, nil
}

// applyFilter restricts the system calls of this thread and its programs. It allocates no memory. Afterwards, the
// launcher calls only execve.
func applyFilter(filter *unix.SockFprog) *Error {
	if filter == nil {
		return nil
	}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(filter)))
	if e != 0 {
		return failed("restrict the task's system calls by seccomp", e)
	}
	return nil
}
