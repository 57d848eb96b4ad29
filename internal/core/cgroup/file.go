// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// The interface files are read and written with direct system calls, because package os has two disadvantages: it
// registers each open file with the runtime's poller, and os.WriteFile tries to create a missing file.

// readFile returns the content of an interface file. The error names the file.
func readFile(path string) ([]byte, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	page := pages.Get().(*[4096]byte)
	defer pages.Put(page)
	var content []byte
	for {
		n, err := retry(func() (int, error) { return unix.Read(fd, page[:]) })
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return content, nil
		}
		content = append(content, page[:n]...)
	}
}

// pages is a pool of buffers: with many tasks, several hundred files are read each second, and most of them contain
// only a few bytes.
var pages = sync.Pool{New: func() any { return new([4096]byte) }}

// writeFile writes one value to an interface file, in a single write(2) as the kernel requires. The error names the
// file and the value.
func writeFile(path, value string) error {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0) })
	if err == nil {
		_, err = retry(func() (int, error) { return unix.Write(fd, []byte(value)) })
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("failed to write %q to %s: %w", value, path, err)
	}
	return nil
}

// retry repeats a call while it fails with EINTR. This happens because signals interrupt a write that lowers
// memory.limit_in_bytes, and the Go runtime sends signals to its own threads.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// readUint reads an interface file that contains one number. It returns an error for "max".
func readUint(path string) (uint64, error) {
	b, err := readFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("failed to parse %s: %w", path, err)
	}
	return n, nil
}

// readKeys reads an interface file with "key number" lines ("flat keyed" in cgroup-v2.rst). It skips all other lines.
func readKeys(path string) (map[string]uint64, error) {
	b, err := readFile(path)
	if err != nil {
		return nil, err
	}
	out := make(map[string]uint64)
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if n, err := strconv.ParseUint(string(value), 10, 64); err == nil {
			out[string(key)] = n
		}
	}
	return out, nil
}

// readPIDs returns the pids in a cgroup.procs file. It omits processes outside the reader's PID namespace, which the
// kernel lists as 0: they cannot be signaled.
func readPIDs(path string) ([]int, error) {
	b, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, field := range bytes.Fields(b) {
		pid, err := strconv.Atoi(string(field))
		if err != nil {
			return nil, fmt.Errorf("failed to parse %s: %w", path, err)
		}
		if pid > 0 {
			out = append(out, pid)
		}
	}
	return out, nil
}

func exists(path string) bool { return unix.Access(path, unix.F_OK) == nil }

func writable(path string) bool { return unix.Access(path, unix.W_OK) == nil }
