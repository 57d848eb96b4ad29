// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// hotplug loads the driver of every device that is plugged, as udev does on a machine that has it.
func hotplug() {
	if err := followDevices(); err != nil {
		fmt.Fprintln(os.Stderr, "guest: no drivers are loaded for new devices:", err)
	}
}

func followDevices() error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		return err
	}
	if err := unix.Bind(s, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		return err
	}
	seen := map[string]bool{}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(s, buf)
		if err == unix.EINTR || err == unix.ENOBUFS {
			continue
		}
		if err != nil {
			return err
		}
		alias := modalias(buf[:n])
		if alias == "" || seen[alias] {
			continue
		}
		seen[alias] = true
		modprobe(alias) // fails for what needs no driver or has none
	}
}

// modalias returns the alias of the device that the event adds, or an empty string.
func modalias(event []byte) (alias string) {
	fields := bytes.Split(event, []byte{0})
	if !bytes.HasPrefix(fields[0], []byte("add@")) {
		return ""
	}
	for _, f := range fields[1:] {
		if a, ok := bytes.CutPrefix(f, []byte("MODALIAS=")); ok {
			alias = string(a)
		}
	}
	return alias
}
