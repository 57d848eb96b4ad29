// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package build

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
)

// Libusb returns nil if b links plugins with libusb; otherwise an error with the reason. Plugins without libusb read
// only the kernel's /sys, and are static programs that run on any Linux.
func (b Builder) Libusb(ctx context.Context) error {
	if b.Static {
		return errors.New("a static build, which runs on any Linux")
	}
	if b.arch() != runtime.GOARCH {
		return fmt.Errorf("cross-compiled on %s for %s", runtime.GOARCH, b.arch())
	}
	cmd := exec.CommandContext(ctx, "go", "env", "CGO_ENABLED")
	cmd.Dir = b.Root
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("failed to run go env: %w", err)
	}
	if strings.TrimSpace(string(out)) != "1" {
		return errors.New("cgo is off, or no C compiler is installed")
	}
	if exec.CommandContext(ctx, "pkg-config", "--exists", "libusb-1.0").Run() != nil {
		return errors.New("pkg-config or libusb-1.0's headers are not installed")
	}
	return nil
}
