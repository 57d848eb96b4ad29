// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"sync"

	"golang.org/x/sys/unix"
)

// scratch is a pipe and a buffer that all streams of the process use to look at
// queued bytes without taking them (tee(2)). It is made when it is first needed,
// which is at the first rotation.
var scratch struct {
	sync.Mutex // one loop needs none; it is there for a caller that has two
	pipe       [2]int
	made       bool
	buf        [64 << 10]byte // what a pipe holds by default, pipe(7): of a wide one a part is looked at
}

// peek calls use with up to n of the bytes at the head of a FIFO, which stay
// there. The bytes are use's only until it returns.
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
		if err != nil || k == 0 { // what is left in it would be taken for the next stream's
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

// discard takes up to n bytes out of a FIFO and returns how many there were.
func discard(fifo, n int) (int, error) {
	scratch.Lock()
	defer scratch.Unlock()
	return retry(func() (int, error) { return unix.Read(fifo, scratch.buf[:min(n, len(scratch.buf))]) })
}
