// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
)

// Serial is a USB serial adapter that is plugged into the VM: QEMU's usb-serial,
// an FTDI FT232 (0403:6001). What a program in the VM writes to its tty can be
// read here, and the other way round.
type Serial struct {
	net.Conn
	vm *VM
	id string
}

var serials atomic.Int64

// PlugSerial plugs an adapter with this serial number into a root port of the
// VM's USB 2 bus, 1 to 4.
func (v *VM) PlugSerial(ctx context.Context, port int, serial string) (*Serial, error) {
	// no other device of the VM needs its controller
	if out, err := v.Output(ctx, "/sbin/modprobe", "xhci-pci"); err != nil {
		return nil, fmt.Errorf("failed to plug the serial adapter: %w: %s", err, out)
	}
	mine, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	s := &Serial{Conn: mine, vm: v, id: fmt.Sprintf("serial%d", serials.Add(1))}
	do := v.machine.qmp.do
	err = do("getfd", map[string]any{"fdname": s.id}, theirs)
	if err == nil {
		err = do("chardev-add", map[string]any{"id": s.id, "backend": map[string]any{
			"type": "socket", "data": map[string]any{
				"addr":   map[string]any{"type": "fd", "data": map[string]any{"str": s.id}},
				"server": false,
			}}}, nil)
	}
	if err == nil {
		err = do("device_add", map[string]any{
			"driver": "usb-serial", "id": s.id, "chardev": s.id, "serial": serial,
			"bus": usbBus + ".0", "port": fmt.Sprint(port), "always-plugged": true,
		}, nil)
	}
	if err != nil {
		mine.Close()
		return nil, fmt.Errorf("failed to plug the serial adapter: %w", err)
	}
	return s, nil
}

// Unplug pulls the adapter out.
func (s *Serial) Unplug() error {
	err := s.vm.machine.qmp.do("device_del", map[string]any{"id": s.id}, nil)
	s.Conn.Close()
	if err != nil {
		return fmt.Errorf("failed to unplug the serial adapter: %w", err)
	}
	return nil
}
