// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ProgramInMemory returns a memfd (memfd_create(2)) that contains a program and that nobody can change. It needs no
// directory, because a host may have none that is both writable and executable. The caller closes the file.
// ProgramInMemory fails if the kernel has no memfds, or if the sysctl vm.memfd_noexec is 2.
func ProgramInMemory(name string, program []byte) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close() // close this descriptor, because a file that is open for writing can't be executed (ETXTBSY)
	_, err = f.Write(program)
	if err == nil {
		seals := unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return nil, err
	}
	return os.Open(fdPath(fd))
}

// Above duplicates a file that a child inherits to a descriptor number above that of a program. A child that executes
// the program as /proc/self/fd/N needs at least one such file: before the execution, syscall.ForkExec moves its pipe to
// a number above all files of the child, and would otherwise move it to N if that is the next number. The caller closes
// the duplicate.
func Above(program, file *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, int(program.Fd())+1)
	if err != nil {
		return nil, fmt.Errorf("failed to duplicate a file for a child: %w", err)
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}
