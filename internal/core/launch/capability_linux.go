// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"math"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// dropBounding removes the capabilities in c.Drop from the thread's bounding set. It runs as root, before the change of
// user.
func dropBounding(c task.Capabilities) *Error {
	for number := range uintptr(64) {
		if c.Drop&(1<<number) == 0 {
			continue
		}
		has, e := call(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, number)
		if e == unix.EINVAL || has == 0 { // unknown to this kernel, or not in the set
			continue
		}
		if e == 0 {
			_, e = call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, number)
		}
		if e != 0 {
			return failed("drop capability "+task.CapabilityNames(1<<number), e)
		}
	}
	return nil
}

// keepCapabilities lets the thread keep its permitted capabilities when it changes from root to another user.
func keepCapabilities(c task.Capabilities) *Error {
	if c.Add == 0 {
		return nil
	}
	if _, e := call(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1); e != 0 {
		return failed("keep capabilities", e)
	}
	return nil
}

// setCapabilities limits the thread's capabilities to c.Add, and makes these ambient, so that execve keeps them. If
// c.Add is empty, it empties the inheritable set, and with it the ambient set (capabilities(7)). It runs after the
// change of user, which empties the other sets.
func setCapabilities(c task.Capabilities) *Error {
	if c.Add == 0 {
		return dropInheritable()
	}
	sets := capabilitySets{}
	for i := range sets {
		half := uint32(c.Add >> (32 * i) & math.MaxUint32)
		sets[i] = unix.CapUserData{Effective: half, Permitted: half, Inheritable: half}
	}
	e := sets.apply()
	for number := uintptr(0); number < 64 && e == 0; number++ {
		if c.Add&(1<<number) != 0 {
			_, e = call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, number, 0, 0)
		}
	}
	if e == unix.EPERM {
		return refuse(e, "capabilities "+task.CapabilityNames(c.Add)+" cannot be added: the agent itself must have them")
	}
	if e != 0 {
		return failed("add capabilities "+task.CapabilityNames(c.Add), e)
	}
	return nil
}

// capabilitySets are a thread's capability sets: capabilities 0 to 31 in the first element, the others in the second.
type capabilitySets [2]unix.CapUserData

func (s *capabilitySets) read() syscall.Errno { return s.call(unix.SYS_CAPGET) }

func (s *capabilitySets) apply() syscall.Errno { return s.call(unix.SYS_CAPSET) }

func (s *capabilitySets) call(trap uintptr) syscall.Errno {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, e := call(trap, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(s)))
	return e
}

func dropInheritable() *Error {
	var sets capabilitySets
	e := sets.read()
	if e == 0 && sets[0].Inheritable|sets[1].Inheritable != 0 {
		sets[0].Inheritable, sets[1].Inheritable = 0, 0
		e = sets.apply()
	}
	if e != 0 {
		return failed("drop inheritable capabilities", e)
	}
	return nil
}
