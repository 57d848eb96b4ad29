// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// loadModules loads the modules of a directory in the order of their names, which is that of their dependencies.
func loadModules(dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return fmt.Errorf("failed to list the modules: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if err := loadModule(path); err != nil {
			return fmt.Errorf("failed to load %s: %w", e.Name(), err)
		}
		if err := os.Remove(path); err != nil { // the initramfs is in memory
			return err
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(path, ".ko") { // .ko.xz and the like
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// openPort opens the virtio serial port of that name. The port appears a moment after its driver was loaded.
func openPort(name string) (*os.File, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, path := range names {
			b, err := os.ReadFile(path)
			if err != nil || strings.TrimSpace(string(b)) != name {
				continue
			}
			device := filepath.Join("/dev", filepath.Base(filepath.Dir(path)))
			f, err := os.OpenFile(device, os.O_RDWR|unix.O_NONBLOCK, 0)
			if err != nil {
				return nil, fmt.Errorf("failed to open the port: %w", err)
			}
			return f, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("there is no port %s", name)
		}
	}
}
