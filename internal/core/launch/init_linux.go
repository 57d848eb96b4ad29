// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const initName = "outrider-init"

// StartInit starts the init of a new PID namespace (pid_namespaces(7)) in a cgroup: given by tasksFiles on version 1,
// by the directory cgroup on version 2. It returns a pidfd, which the caller closes. If the cgroup is killed, or the
// init gets a SIGKILL from outside the namespace, the whole namespace ends. The caller's process must reap the init.
//
// The init only waits. No process of the namespace can end it. Orphans become its children, and the kernel reaps them,
// because the init ignores SIGCHLD. It is a program of a few instructions, with one thread and hardly any memory.
func StartInit(tasksFiles []string, cgroup *os.File) (*os.File, error) {
	err := checkThawed(cgroup)
	if err != nil {
		return nil, err
	}
	program, err := initProgram()
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	above, err := Above(program, null)
	if err != nil {
		return nil, err
	}
	defer above.Close()
	pidfd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd, Cloneflags: unix.CLONE_NEWPID}
	if cgroup != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(cgroup.Fd())
	}
	files := []uintptr{above.Fd(), above.Fd(), above.Fd()}
	attr := &syscall.ProcAttr{Dir: "/", Env: []string{}, Files: files, Sys: sys}
	pid, err := syscall.ForkExec(fdPath(int(program.Fd())), []string{initName}, attr)
	if err != nil {
		return nil, fmt.Errorf("failed to start the init process of the task's PID namespace: %w", err)
	}
	if pidfd < 0 { // ForkExec returns no error if a sandbox refuses a pidfd
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil)
		return nil, fmt.Errorf("failed to open a pidfd for the init process of the task's PID namespace: %w", err)
	}
	init := os.NewFile(uintptr(pidfd), initName)
	for _, path := range tasksFiles {
		e := writeFile(path, strconv.Itoa(pid))
		if e != 0 {
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
			_, _ = unix.Wait4(pid, nil, 0, nil)
			init.Close()
			return nil, fmt.Errorf("failed to move the init process of the task's PID namespace to cgroup %s: %w", path, e)
		}
	}
	return init, nil
}

// elf is an ELF file (elf(5), Elf64_Ehdr and Elf64_Phdr) with one segment, which is the whole file.
type elf struct {
	ident                                                   [16]byte
	kind, machine                                           uint16
	version                                                 uint32
	entry, headers, sections                                uint64
	flags                                                   uint32
	size, headerSize, count, sectionSize, noSections, names uint16

	loadable, permissions                   uint32
	offset, address, physical, file, memory uint64
	align                                   uint64

	code    [len(initCode)]byte
	ignored [32]byte // sigaction with SIG_IGN
	name    [len(initName) + 1]byte
}

// initProgram returns a program that ignores SIGCHLD, sets its name, and then waits forever.
var initProgram = sync.OnceValues(func() (*os.File, error) {
	const (
		base       = 0x10000
		executable = 2 // ET_EXEC
		loadable   = 1 // PT_LOAD
		readable   = 4 // PF_R
		runnable   = 1 // PF_X
	)
	image := elf{
		ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, // 64 bits, little-endian
		kind:  executable, machine: initMachine, version: 1, count: 1,
		loadable: loadable, permissions: readable | runnable, address: base, physical: base, align: base,
		ignored: [32]byte{sigIgnore},
	}
	image.headers = uint64(unsafe.Offsetof(image.loadable))
	image.size = uint16(unsafe.Offsetof(image.loadable))
	image.headerSize = uint16(unsafe.Offsetof(image.code) - unsafe.Offsetof(image.loadable))
	image.entry = base + uint64(unsafe.Offsetof(image.code))
	image.file, image.memory = uint64(unsafe.Sizeof(image)), uint64(unsafe.Sizeof(image))
	copy(image.code[:], initCode)
	copy(image.name[:], initName)

	f, err := ProgramInMemory(initName, unsafe.Slice((*byte)(unsafe.Pointer(&image)), unsafe.Sizeof(image)))
	if err != nil {
		return nil, fmt.Errorf("failed to create the program for the init process of the task's PID namespace: %w", err)
	}
	return f, nil
})
