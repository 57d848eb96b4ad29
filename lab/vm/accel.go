// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// accelEnv selects "kvm" or "tcg" (emulation) and disables the search.
const accelEnv = "LAB_VM_ACCEL"

// accelerator is one way to run the VM's processors.
type accelerator struct {
	name     string
	cpu      string
	args     string        // for the kernel
	patience time.Duration // for the boot
	remember func()        // records that the accelerator does not work here; nil for the last one
}

var (
	// no la57: it makes each walk through the page tables longer, and no test needs it
	//
	// the kernel distrusts the emulated time stamp counters, though they are synchronous,
	// and would instead read a timer device, which is a hundred times slower; and on a busy machine
	// the kernel panics if the emulated timer is late when the kernel checks that timer
	tcg = accelerator{name: "tcg", cpu: "max,la57=off", args: "tsc=reliable no_timer_check", patience: 3 * time.Minute}
	// "host" requires everything that the kernel offers, so a broken KVM fails immediately
	kvm = accelerator{name: "kvm", cpu: "host", patience: 20 * time.Second}
)

// accelerators returns the accelerators to try, in this order. Only a VM that has booted proves that KVM works: nested
// and partly emulated machines have /dev/kvm too, but a VM aborts, or hangs in its first instruction. A failure is
// remembered until this machine boots again.
func accelerators() []accelerator {
	switch strings.ToLower(os.Getenv(accelEnv)) {
	case kvm.name:
		return []accelerator{kvm}
	case tcg.name:
		return []accelerator{tcg}
	}
	if unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) != nil {
		return []accelerator{tcg}
	}
	verdict, boot := verdictPath(), task.BootID()
	if b, err := os.ReadFile(verdict); err == nil && string(b) == boot {
		return []accelerator{tcg}
	}
	first := kvm
	first.remember = func() {
		os.WriteFile(verdict, []byte(boot), 0o644) // if the write fails, KVM is tried each time
	}
	return []accelerator{first, tcg}
}

// verdictPath returns the file that has the id of the boot of this machine in which KVM did not work.
func verdictPath() string {
	dir, err := cache.Dir()
	if err != nil {
		return os.DevNull
	}
	return filepath.Join(dir, "vm", "kvm-does-not-work")
}
