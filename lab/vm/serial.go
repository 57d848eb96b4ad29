// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"fmt"
	"net"
)

// Serial is a USB serial adapter that is plugged into the VM: QEMU's usb-serial, an FTDI FT232 (0403:6001). It
// connects to the adapter's tty in the VM: programs there read what is written here, and the reverse. A VM has one.
type Serial struct {
	net.Conn
	vm *VM
}

// PlugSerial plugs the adapter with this serial number into a root port of the
// VM's USB 2 bus, 1 to 4.
func (v *VM) PlugSerial(ctx context.Context, port int, serial string) (*Serial, error) {
	// no other device of the VM needs its controller
	if out, err := v.Output(ctx, "/sbin/modprobe", "xhci-pci"); err != nil {
		return nil, fmt.Errorf("failed to plug the serial adapter: %w: %s", err, out)
	}
	err := v.machine.qmp.do("device_add", map[string]any{
		"driver": "usb-serial", "id": "adapter", "chardev": serialID, "serial": serial,
		"bus": usbBus + ".0", "port": fmt.Sprint(port), "always-plugged": true,
	})
	if err != nil {
		return nil, fmt.Errorf("failed to plug the serial adapter: %w", err)
	}
	return &Serial{Conn: v.machine.serial, vm: v}, nil
}

// Unplug pulls the adapter out.
func (s *Serial) Unplug() error {
	if err := s.vm.machine.qmp.do("device_del", map[string]any{"id": "adapter"}); err != nil {
		return fmt.Errorf("failed to unplug the serial adapter: %w", err)
	}
	return nil
}
