// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package uevent receives the kernel's events about USB devices that are plugged in or unplugged, and
// udev's events after it has processed them.
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
	kernelGroup = 1       // lib/kobject_uevent.c
	udevGroup   = 2       // systemd, src/libsystemd/sd-device/device-monitor.c
	messageSize = 8 << 10 // for a path, and the environment of at most UEVENT_BUFFER_SIZE, 2 KiB
	queueSize   = 8 << 20 // the most that the kernel queues for a slow reader
)

// Handler has the functions that Listen calls, all from one goroutine.
type Handler struct {
	// Removed is called for each removed node of a USB device, before Kick. The kernel may give the
	// node's number to the next device. Added is called for each new node.
	Removed, Added func(Number)

	// Missed is called before Kick when removals may have been missed: at the start, and after an
	// overflow of the queue, once the messages still in the queue are processed.
	Missed func()

	// Kick is called after an event about a USB device or an object of its drivers, again after udev
	// has set the owner and mode of a node, and after Missed.
	Kick func()
}

// Listen returns when ctx ends or when it can't receive events. It needs no privilege. The network
// namespace of an unprivileged container gets no events.
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
			lost = true // the kernel drops more messages without a further error until the queue is empty
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
