// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"fmt"
	"slices"
	"strings"
)

// Capabilities changes a program's capabilities. In both masks, bit n is the capability with number n
// (capabilities(7)).
type Capabilities struct {
	// Drop is removed from the bounding set: even root or a set-user-ID program can't get these capabilities.
	Drop uint64 `json:"drop,omitempty"`

	// Add is put into the ambient set of a program that does not run as root.
	Add uint64 `json:"add,omitempty"`
}

// capabilities are the names of capabilities(7), by number.
var capabilities = strings.Fields(`chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap
	linux_immutable net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot
	sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write
	audit_control setfcap mac_override mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf
	checkpoint_restore`)

// ParseCapabilities returns the mask of an option's list of names, which are written as in Nomad's exec driver:
// "net_raw", "CAP_NET_RAW", or "all".
func ParseCapabilities(option string, names []string) (mask uint64, err error) {
	for _, name := range names {
		short := strings.TrimPrefix(strings.ToLower(name), "cap_")
		number := slices.Index(capabilities, short)
		switch {
		case short == "all":
			mask |= AllCapabilities()
		case number < 0:
			return 0, fmt.Errorf("%s: %q is not a capability: use a name from capabilities(7), such as \"net_bind_service\"",
				option, name)
		default:
			mask |= 1 << number
		}
	}
	return mask, nil
}

// AllCapabilities is the mask of all capabilities.
func AllCapabilities() uint64 { return 1<<len(capabilities) - 1 }

// CapabilityNames returns the names of a mask's capabilities, for messages.
func CapabilityNames(mask uint64) string { return strings.Join(CapabilityList(mask), ", ") }

// CapabilityList returns the names of a mask's capabilities, such as "net_raw".
func CapabilityList(mask uint64) (names []string) {
	for number, name := range capabilities {
		if mask&(1<<number) != 0 {
			names = append(names, name)
		}
	}
	return names
}
