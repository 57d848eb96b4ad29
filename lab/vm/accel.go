// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// accelEnv chooses "kvm" or "tcg" (emulation) and stops the search.
const accelEnv = "LAB_VM_ACCEL"

// accelerator is one way to run the VM's processors.
type accelerator struct {
	name     string
	cpu      string
	args     string        // for the kernel
	patience time.Duration // until it has booted
	remember func()        // that it does not work here, where another is left to try; else nil
}

var (
	// la57 makes each walk through the page tables longer, and no test needs it
	//
	// the kernel finds the emulated time stamp counters wanting, which are all the
	// same, and would read a timer that is a device, a hundred times slower; and it
	// panics if the emulated timer is late when it checks it, on a busy machine
	tcg = accelerator{name: "tcg", cpu: "max,la57=off", args: "tsc=reliable no_timer_check", patience: 3 * time.Minute}
	// "host" insists on all that the kernel offers, so that a KVM that is broken
	// shows it at once
	kvm = accelerator{name: "kvm", cpu: "host", patience: 20 * time.Second}
)

// accelerators are those to try, in this order. The only proof that KVM works is
// a machine that has booted: nested and partly emulated ones have /dev/kvm, too,
// and then abort, or hang in the first instruction. That it does not work is
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
		os.WriteFile(verdict, []byte(boot), 0o644) // else it is tried each time
	}
	return []accelerator{first, tcg}
}

// verdictPath is the file with the boot id of the machine on which KVM did not work.
func verdictPath() string {
	dir, err := cache.Dir()
	if err != nil {
		return os.DevNull
	}
	return filepath.Join(dir, "vm", "kvm-does-not-work")
}

// firstLine is the error without the console.
func firstLine(err error) error {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(line)
}
