// Package uevent hears from the kernel that something was plugged in or out, and
// from udev that it is done with it.
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
	messageSize = 8 << 10 // a path, and the environment of UEVENT_BUFFER_SIZE, 2 KiB
	queueSize   = 8 << 20 // the most that the kernel queues for a reader that is late
)

// Hearer is who is told, from one goroutine.
type Hearer struct {
	// Removed is called for each node of a USB device that is gone, before Kick: its number
	// is free for what comes next. Added is called for each that is new.
	Removed, Added func(Number)

	// Missed is called before Kick where removals may have been missed: once it is
	// listened, and, when the kernel had more to say than there was room for, after the
	// messages that it had room for.
	Missed func()

	// Kick is called when the kernel tells of a USB device or of what its drivers made of
	// it, again when udev has given a node its owner and mode, and after Missed.
	Kick func()
}

// Listen returns with ctx, or when the kernel can't be heard. It needs no privilege. In
// a network namespace of an unprivileged container the kernel says nothing.
func Listen(ctx context.Context, h Hearer) error {
	socket, err := open()
	if err != nil {
		return fmt.Errorf("failed to listen for the kernel's events: %w", err)
	}
	defer socket.Close()
	return h.hear(ctx, socket, ofUSB)
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
	// Only root may; otherwise it is the default of the machine.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queueSize)
	return os.NewFile(uintptr(fd), "uevents"), nil
}

func (h Hearer) hear(ctx context.Context, socket *os.File, about func(message []byte) bool) error {
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
			lost = true // until the queue is empty the kernel drops more, and says so only now
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
