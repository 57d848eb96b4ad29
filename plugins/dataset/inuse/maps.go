// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inuse

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maps looks at the files that a process has mapped. The device that the kernel tells of them is that
// of the whole file system.
func (s *scan) maps(dir int) (bool, error) {
	fd, err := unix.Openat(dir, "maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: "maps", Err: err}
	}
	defer unix.Close(fd)
	is, err := s.queryMaps(dir, fd)
	if errors.Is(err, unix.ENOTTY) { // Linux before 6.11
		return s.readMaps(dir)
	}
	return is, err
}

// procmapQuery is struct procmap_query of include/uapi/linux/fs.h.
type procmapQuery struct {
	size, flags, from   uint64
	start, end          uint64
	_, _, _, _          uint64
	major, minor        uint32
	nameSize, buildSize uint32
	name, build         uint64
}

const (
	procmapIoctl = 0xc0686611
	procmapFiles = 0x10 | 0x20 // at this address or after it, those of files alone
)

// queryMaps does not have the kernel write all maps as text, which takes most of the time otherwise.
func (s *scan) queryMaps(dir, fd int) (bool, error) {
	for from := uint64(0); ; {
		q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), flags: procmapFiles, from: from}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), procmapIoctl, uintptr(unsafe.Pointer(&q)))
		switch errno {
		case 0:
		case unix.ENOENT, unix.ESRCH:
			return false, nil
		case unix.EINTR:
			continue
		default:
			return false, errno
		}
		if s.mapped(unix.Mkdev(q.major, q.minor)) {
			if is, err := s.is(dir, fmt.Sprintf("map_files/%x-%x", q.start, q.end)); is || err != nil && !gone(err) {
				return is, err
			}
		}
		from = q.end
	}
}

func (s *scan) readMaps(dir int) (bool, error) {
	text, err := read(dir, "maps")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(text) {
		place, rest, _ := strings.Cut(line, " ")
		_, rest, _ = strings.Cut(rest, " ") // permissions
		_, rest, _ = strings.Cut(rest, " ") // offset
		device, _, _ := strings.Cut(rest, " ")
		if device == "00:00" {
			continue
		}
		a, b, _ := strings.Cut(device, ":")
		major, _ := strconv.ParseUint(a, 16, 32)
		minor, _ := strconv.ParseUint(b, 16, 32)
		if !s.mapped(unix.Mkdev(uint32(major), uint32(minor))) {
			continue
		}
		from, to, _ := strings.Cut(place, "-")
		from, to = strings.TrimLeft(from, "0"), strings.TrimLeft(to, "0")
		if is, err := s.is(dir, "map_files/"+from+"-"+to); is || err != nil && !gone(err) {
			return is, err
		}
	}
	return false, nil
}

// mapped reports whether a mapped file on a device may be of a target.
func (s *scan) mapped(device uint64) bool {
	if s.devices[device] {
		return true
	}
	for _, t := range s.targets {
		if t.device == device {
			return true
		}
	}
	return false
}
