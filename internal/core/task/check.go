// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"errors"
	"fmt"
	"strings"
)

// maxCommand is the kernel's highest limit for arguments and environment together, counting a pointer for each string
// (execve(2), fs/exec.c). The limit that applies is often lower.
const maxCommand = 6 << 20

// Check rejects commands that no program can be started with, and protects the supervisor from
// very large ones. The launcher reports all other errors, including commands that are too long
// for the kernel.
func (cmd *Command) Check() error {
	if cmd.Path == "" {
		return errors.New("command is empty: set it to a program, for example \"/bin/sleep\"")
	}
	if strings.ContainsRune(cmd.Path+strings.Join(cmd.Args, ""), 0) {
		return errors.New("command contains a NUL character, which execve(2) cannot pass to a program: remove it")
	}
	size := 0
	for _, list := range [][]string{cmd.Args, cmd.Env} {
		for _, s := range list {
			size += len(s) + 1 + 8
		}
	}
	if size > maxCommand {
		return fmt.Errorf("arguments and environment are %d MiB together, but the kernel accepts at most %d MiB",
			size>>20, maxCommand>>20)
	}
	return nil
}
