// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package uevent

import (
	"bytes"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// receive waits for a message and returns it, or nil if it neither comes from the kernel nor was sent to udev's group.
// Each time that receive finds the queue empty, it calls drained before it waits.
func receive(conn syscall.RawConn, buffer []byte, drained func()) (message []byte, err error) {
	var from unix.Sockaddr
	var n int
	waited := conn.Read(func(fd uintptr) bool {
		n, from, err = unix.Recvfrom(int(fd), buffer, 0)
		if err == unix.EAGAIN {
			drained()
		}
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if waited != nil {
		return nil, waited
	}
	if err != nil {
		return nil, err
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 && sender.Groups != udevGroup {
		return nil, nil
	}
	return buffer[:n], nil
}

// Number is the kind and number of a device node.
type Number struct {
	Block        bool
	Major, Minor uint32
}

// node parses the kernel's message about a removed or new node:
//
//	remove@/devices/…/1-1:1.0/ttyUSB0/tty/ttyUSB0\x00ACTION=remove\x00SUBSYSTEM=tty\x00MAJOR=188\x00MINOR=0\x00…
func node(message []byte) (r Number, removed, ok bool) {
	removed = bytes.HasPrefix(message, []byte("remove@/"))
	if !removed && !bytes.HasPrefix(message, []byte("add@/")) {
		return r, false, false
	}
	var major, minor bool
	for part := range bytes.SplitSeq(message, []byte{0}) {
		key, value, _ := strings.Cut(string(part), "=")
		n, err := strconv.ParseUint(value, 10, 32)
		switch {
		case key == "SUBSYSTEM":
			r.Block = value == "block"
		case key == "MAJOR" && err == nil:
			r.Major, major = uint32(n), true
		case key == "MINOR" && err == nil:
			r.Minor, minor = uint32(n), true
		}
	}
	return r, removed, major && minor
}

// ofUSB reports whether a message is about a USB device or an object of its drivers: all of these are below
// the directory of a bus ("usb1").
//
//	add@/devices/pci0000:00/0000:00:14.0/usb1/1-1\x00ACTION=add\x00DEVPATH=/devices/…
//	libudev\x00, a header in binary, DEVPATH=/devices/pci0000:00/0000:00:14.0/usb1/1-1\x00ACTION=add\x00…
func ofUSB(message []byte) bool {
	before := []byte("@/")
	if bytes.HasPrefix(message, []byte("libudev\x00")) {
		before = []byte("DEVPATH=/")
	}
	_, path, ok := bytes.Cut(message, before)
	if !ok {
		return false
	}
	path, _, ok = bytes.Cut(path, []byte{0})
	if !ok {
		return false
	}
	for part := range bytes.SplitSeq(path, []byte("/")) {
		number, isBus := bytes.CutPrefix(part, []byte("usb"))
		if isBus && len(number) > 0 && len(bytes.Trim(number, "0123456789")) == 0 {
			return true
		}
	}
	return false
}
