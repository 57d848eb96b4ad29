// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package uevent receives the events that the kernel sends when USB devices are plugged in or unplugged, and the events
// that udev sends after it has processed them.
package uevent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	kernelGroup = 1       // netlink group of the kernel's events (lib/kobject_uevent.c)
	udevGroup   = 2       // netlink group of udev's events (systemd, src/libsystemd/sd-device/device-monitor.c)
	messageSize = 8 << 10 // bytes: a path, and an environment of at most UEVENT_BUFFER_SIZE, 2 KiB
	queueSize   = 8 << 20 // bytes that the kernel queues at most for a slow reader
)

// Handler has the functions that Listen calls, all from one goroutine.
type Handler struct {
	// Removed is called for each removed node of a USB device, before Kick, because the next device may get the node's
	// number. Added is called for each new node.
	Removed, Added func(Number)

	// Missed is called, before Kick, when removals may have been missed: at the start, and after an overflow of the queue,
	// once the messages that are still in the queue are processed.
	Missed func()

	// Kick is called after Missed and after each event about a USB device or an object of its drivers. For a new node,
	// udev sends a second event when it has set owner and mode.
	Kick func()
}

// Listen calls the functions of h until ctx ends or events can't be received, and returns the reason. It needs no
// privilege. The network namespace of an unprivileged container gets no events.
func Listen(ctx context.Context, h Handler) error {
	socket, err := open()
	if err != nil {
		return fmt.Errorf("failed to listen for the kernel's events: %w", err)
	}
	defer socket.Close()
	return h.listen(ctx, socket, ofUSB)
}

func open() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup | udevGroup}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	// fails without root: the queue then has the machine's default size
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueSize)
	return os.NewFile(uintptr(fd), "uevents"), nil
}

func (h Handler) listen(ctx context.Context, socket *os.File, about func(message []byte) bool) error {
	conn, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	h.Missed()
	h.Kick()
	buffer := make([]byte, messageSize)
	lost := false
	drained := func() {
		if lost {
			lost = false
			h.Missed()
			h.Kick()
		}
	}
	for {
		message, err := receive(conn, buffer, drained)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			lost = true // until the queue is empty, the kernel drops messages without a further error
		case err != nil:
			return fmt.Errorf("failed to read the kernel's events: %w", err)
		case about(message):
			switch n, removed, ok := node(message); {
			case ok && removed:
				h.Removed(n)
			case ok:
				h.Added(n)
			}
			h.Kick()
		}
	}
}
