// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	qemu = "/usr/bin/qemu-aarch64-static"

	// interpreter is the name by which the kernel starts this test binary, in place of an arm64 program.
	interpreter = "qemuexec"
)

// qemuexec runs an arm64 program for which the kernel has started this test binary (binfmt_misc, flags OP). It executes
// QEMU's user mode with the program's path. A program without a path, such as the supervisor that a plugin has in
// memory, is first copied to the interpreter's folder, because QEMU opens the program again when the program executes
// itself. args are the interpreter, the program's path, and the program's arguments from the 0th.
func qemuexec(args []string) error {
	if len(args) < 3 {
		return errors.New("not started by binfmt_misc with the flag P")
	}
	program, err := programFile()
	if err != nil {
		return err
	}
	defer program.Close()
	path, err := pathOf(program, filepath.Dir(args[0]))
	if err == nil {
		err = oneProcessor()
	}
	if err != nil {
		return err
	}
	return unix.Exec(qemu, append([]string{qemu, "-0", args[2], path}, args[3:]...), os.Environ())
}

// oneProcessor makes QEMU's threads run one at a time. If QEMU forks while another thread holds one of QEMU's locks,
// the child waits for that lock forever, before it executes anything.
func oneProcessor() error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	cpu := 0
	for !may.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	return unix.SchedSetaffinity(0, &one)
}

// programFile returns the arm64 program's file, which the kernel passes as an open descriptor.
func programFile() (*os.File, error) {
	const execFD = 2 // AT_EXECFD, see getauxval(3)
	aux, err := os.ReadFile("/proc/self/auxv")
	if err != nil {
		return nil, err
	}
	for ; len(aux) >= 16; aux = aux[16:] {
		if binary.NativeEndian.Uint64(aux) == execFD {
			fd := int(binary.NativeEndian.Uint64(aux[8:])) //nolint:gosec // the kernel's
			unix.CloseOnExec(fd)
			return os.NewFile(uintptr(fd), "program"), nil
		}
	}
	return nil, errors.New("not started by binfmt_misc with the flag O")
}

// pathOf returns a path by which the program can be executed: a copy in dir if the program has no path.
func pathOf(program *os.File, dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(program.Fd()), &st); err != nil {
		return "", err
	}
	if st.Nlink > 0 {
		return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(program.Fd())))
	}
	path := filepath.Join(dir, fmt.Sprintf("%d-%d", st.Ino, st.Size))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(f, program)
	if err = errors.Join(err, f.Chmod(0o755), f.Close()); err != nil {
		return "", err
	}
	return path, os.Rename(f.Name(), path)
}
