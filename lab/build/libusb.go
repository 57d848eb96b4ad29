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

// Libusb returns nil if plugins are linked with libusb, and otherwise the reason why
// they are not: they then ask the kernel alone (/sys), and are static programs that
// run on any Linux.
func (b Builder) Libusb(ctx context.Context) error {
	if b.Static {
		return errors.New("built to run on any Linux")
	}
	if b.arch() != runtime.GOARCH {
		return fmt.Errorf("built on %s for %s", runtime.GOARCH, b.arch())
	}
	cc, _, _ := strings.Cut(goEnv(ctx, b.Root, "CC"), " ")
	if _, err := exec.LookPath(cc); err != nil {
		return errors.New("there is no C compiler")
	}
	if goEnv(ctx, b.Root, "CGO_ENABLED") == "0" {
		return errors.New("cgo is off")
	}
	if _, err := exec.LookPath("pkg-config"); err != nil {
		return errors.New("there is no pkg-config")
	}
	if exec.CommandContext(ctx, "pkg-config", "--exists", "libusb-1.0").Run() != nil {
		return errors.New("libusb-1.0's headers are not installed")
	}
	return nil
}

func goEnv(ctx context.Context, dir, name string) string {
	cmd := exec.CommandContext(ctx, "go", "env", name)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
