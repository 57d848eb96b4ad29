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

// accelEnv is an environment variable. If it is "kvm" or "tcg" (emulation), only this accelerator is tried.
const accelEnv = "LAB_VM_ACCEL"

// accelerator is one way to run the VM's processors.
type accelerator struct {
	name     string
	cpu      string
	args     string        // arguments for the kernel
	patience time.Duration // limit for the boot
	remember func()        // records that the accelerator does not work here; nil for the last one
}

var (
	// without la57, which makes each walk through the page tables longer, and which no test needs
	//
	// tsc=reliable: otherwise, the kernel distrusts the emulated time stamp counters, though they are synchronous, and
	// reads a timer device, which is a hundred times slower
	// no_timer_check: otherwise, on a busy machine, the kernel panics if the emulated timer is late during its check
	tcg = accelerator{name: "tcg", cpu: "max,la57=off", args: "tsc=reliable no_timer_check", patience: 3 * time.Minute}
	// the cpu "host" requires everything that the kernel offers, so a broken KVM fails immediately
	kvm = accelerator{name: "kvm", cpu: "host", patience: 20 * time.Second}
)

// accelerators returns the accelerators to try, in this order. /dev/kvm does not prove that KVM works, only the boot of
// a VM does: on some nested or partly emulated machines, a VM aborts, or hangs in its first instruction. Such a failure
// is remembered until this machine boots again.
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

// verdictPath returns the path of the file that records, by the id of the boot, that KVM did not work in this boot.
func verdictPath() string {
	dir, err := cache.Dir()
	if err != nil {
		return os.DevNull
	}
	return filepath.Join(dir, "vm", "kvm-does-not-work")
}
