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
)

// Listen calls kick once it listens, for what was missed before, and then whenever
// the kernel tells of a USB device or of what its drivers made of it, and again when
// udev has given a node its owner and mode. It returns with ctx, or when the kernel
// can't be heard. It needs no privilege. In a network namespace of an unprivileged
// container the kernel says nothing.
func Listen(ctx context.Context, kick func()) error {
	socket, err := open()
	if err != nil {
		return fmt.Errorf("failed to listen for the kernel's events: %w", err)
	}
	defer socket.Close()
	return hear(ctx, socket, ofUSB, kick)
}

func open() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup | udevGroup}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "uevents"), nil
}

func hear(ctx context.Context, socket *os.File, about func(message []byte) bool, kick func()) error {
	conn, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { socket.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	kick()
	buffer := make([]byte, messageSize)
	for {
		message, err := receive(conn, buffer)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS): // some were lost
			kick()
		case err != nil:
			return fmt.Errorf("failed to read the kernel's events: %w", err)
		case about(message):
			kick()
		}
	}
}
