// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command guest is the first process of a VM of package vm. It makes the host's files its root, mounts what a machine
// with systemd has mounted, and then runs commands for the host, until the host closes the port or is gone.
//
// It is the only program of the initramfs. As `serve` it is also the second process: the first one only reaps orphans.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		serve(os.NewFile(3, wire.Port)) // does not return
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: this is the first process of a virtual machine and nothing else")
		os.Exit(2)
	}
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err) // on the console, whose end the host reports
	}
	powerOff()
}

// start makes the machine and runs the server until its end.
func start() error {
	text, err := os.ReadFile("/config.json")
	if err != nil {
		return err
	}
	var c wire.Config
	if err := json.Unmarshal(text, &c); err != nil {
		return fmt.Errorf("failed to read the configuration: %w", err)
	}
	if err := mountAll(initial); err != nil {
		return err
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	port, err := openPort(wire.Port)
	if err != nil {
		return err
	}
	if err := errors.Join(becomeHost(), system(c)); err != nil {
		return err
	}
	server := exec.Command("/proc/self/exe", "serve")
	server.Stdin, server.Stdout, server.Stderr = os.Stdin, os.Stdout, os.Stderr
	server.ExtraFiles = []*os.File{port}
	if err := server.Start(); err != nil {
		return fmt.Errorf("failed to start the server: %w", err)
	}
	return reap(server.Process.Pid)
}

// reap reaps processes until the server ends. It always returns an error: the server switches the machine off.
func reap(server int) error {
	for {
		var st syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &st, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("failed to wait: %w", err)
		case pid == server:
			return fmt.Errorf("the server has ended: %v", st)
		}
	}
}

// powerOff does not return. It writes everything to the disk first.
func powerOff() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "guest: failed to power off:", err)
	}
	select {}
}
