// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package wire is the protocol between a VM's host and guest, beyond SSH, which they speak over a virtio serial port.
// The guest is the server: a session runs a command, and direct-tcpip connects to a port of the guest.
package wire

import (
	"net"
	"os"
)

// Port is the name of the virtio serial port.
const Port = "outrider.vm"

// Version is what the guest's SSH version begins with; its kernel's release follows.
const Version = "SSH-2.0-guest "

// Config is what the host writes into the initramfs as config.json.
type Config struct {
	Modules string `json:"modules"` // the kernel's modules, below the host's root
	Disk    bool   `json:"disk"`    // whether there is one, with an ext4 file system
}

// Run is the command of an exec request, as JSON.
type Run struct {
	Args  []string `json:"args"`
	Env   []string `json:"env"`
	Dir   string   `json:"dir"`
	Stdin bool     `json:"stdin"` // otherwise it is /dev/null
}

// NotStarted is the signal of a command that did not start; the message is the reason. Any other signal is a number.
const NotStarted = "START"

// ExitStatus is the payload of an exit-status request.
type ExitStatus struct{ Status uint32 }

// ExitSignal is the payload of an exit-signal request.
type ExitSignal struct {
	Signal            string
	Core              bool
	Message, Language string
}

// Conn is a file as a connection.
type Conn struct{ *os.File }

// LocalAddr implements net.Conn.
func (Conn) LocalAddr() net.Addr { return &net.UnixAddr{Name: Port, Net: "unix"} }

// RemoteAddr implements net.Conn.
func (Conn) RemoteAddr() net.Addr { return &net.UnixAddr{Name: Port, Net: "unix"} }
