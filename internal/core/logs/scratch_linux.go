// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"sync"

	"golang.org/x/sys/unix"
)

// scratch is a pipe and a buffer that all streams of the process use to inspect queued bytes without consuming them
// (tee(2)). The pipe is made at the first rotation.
var scratch struct {
	sync.Mutex // for a process with several event loops
	pipe       [2]int
	made       bool
	buf        [64 << 10]byte // the default pipe capacity, pipe(7); of a larger pipe only a part is inspected
}

// peek calls use with up to n bytes from the head of a FIFO without consuming them. use must not keep the slice.
func peek(fifo, n int, use func(p []byte)) error {
	scratch.Lock()
	defer scratch.Unlock()
	if !scratch.made {
		if err := unix.Pipe2(scratch.pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			return err
		}
		scratch.made = true
	}
	n = min(n, len(scratch.buf))
	teed, err := retry(func() (int64, error) {
		return unix.Tee(fifo, scratch.pipe[1], n, unix.SPLICE_F_NONBLOCK)
	})
	if err != nil {
		return err
	}
	p := scratch.buf[:0]
	for len(p) < int(teed) {
		k, err := retry(func() (int, error) { return unix.Read(scratch.pipe[0], scratch.buf[len(p):teed]) })
		if err != nil || k == 0 { // close the pipe: its leftover bytes would be mistaken for another stream's bytes
			unix.Close(scratch.pipe[0])
			unix.Close(scratch.pipe[1])
			scratch.made = false
			return err
		}
		p = scratch.buf[:len(p)+k]
	}
	use(p)
	return nil
}

// discard removes up to n bytes from a FIFO and returns their number.
func discard(fifo, n int) (int, error) {
	scratch.Lock()
	defer scratch.Unlock()
	return retry(func() (int, error) { return unix.Read(fifo, scratch.buf[:min(n, len(scratch.buf))]) })
}
