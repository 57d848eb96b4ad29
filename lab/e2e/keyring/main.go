// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command keyring shows what a process of the end-to-end tests has of its parent and no program prints.
//
//	keyring add COMMAND …  executes the command in a new session keyring that has a key
//	keyring show           prints the session keyring's serial number, the key, and the parent-death signal
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	keyType = "user"
	keyName = "outrider-e2e"
)

func main() {
	runtime.LockOSThread() // a session keyring belongs to the thread
	err := errors.New("usage: keyring add COMMAND …, or keyring show")
	if len(os.Args) > 2 && os.Args[1] == "add" {
		err = add(os.Args[2:])
	} else if len(os.Args) == 2 && os.Args[1] == "show" {
		err = show()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "keyring:", err)
		os.Exit(1)
	}
}

func add(argv []string) error {
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	if _, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("failed to join a session keyring: %w", err)
	}
	if _, err := unix.AddKey(keyType, keyName, []byte("of the agent"), unix.KEY_SPEC_SESSION_KEYRING); err != nil {
		return fmt.Errorf("failed to add a key: %w", err)
	}
	return unix.Exec(program, argv, os.Environ())
}

func show() error {
	session, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if err != nil {
		return fmt.Errorf("failed to read the session keyring: %w", err)
	}
	value := "none"
	key, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, keyType, keyName, 0)
	if err == nil {
		content := make([]byte, 64)
		n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, key, content, 0)
		if err != nil {
			return fmt.Errorf("failed to read the key: %w", err)
		}
		value = string(content[:n])
	} else if !errors.Is(err, unix.ENOKEY) {
		return fmt.Errorf("failed to look for the key: %w", err)
	}
	var death int32
	if err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&death)), 0, 0, 0); err != nil {
		return fmt.Errorf("failed to read the parent-death signal: %w", err)
	}
	fmt.Printf("session=%d\nkey=%s\ndeath=%d\n", session, value, death)
	return nil
}
