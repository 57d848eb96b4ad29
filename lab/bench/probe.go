// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
)

// writeProbe writes the program whose start is timed: its first instructions read
// the monotonic clock, then it writes the 16 bytes of the time to the file that
// its first argument names, and ends. It is a static ELF file of one page, so
// that next to nothing of its own start is in the time: no loader, no libc.
func writeProbe(path string) error {
	code, machine := probeAMD64, uint16(elfAMD64)
	if runtime.GOARCH == "arm64" {
		code, machine = probeARM64, elfARM64
	} else if runtime.GOARCH != "amd64" {
		return fmt.Errorf("no probe for %s", runtime.GOARCH)
	}
	return os.WriteFile(path, elf(machine, code), 0o755)
}

const (
	elfAMD64 = 62
	elfARM64 = 183
)

// elf is an executable of one segment: elf(5).
func elf(machine uint16, code []byte) []byte {
	const base, headers = 0x400000, 64 + 56
	le := binary.LittleEndian
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 15: 0} // 64 bit, little endian
	b = le.AppendUint16(b, 2)                        // ET_EXEC
	b = le.AppendUint16(b, machine)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+headers) // entry
	b = le.AppendUint64(b, 64)           // program headers
	b = le.AppendUint64(b, 0)            // no sections
	b = le.AppendUint32(b, 0)
	for _, n := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, n)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // r-x
	size := uint64(headers + len(code))
	for _, n := range []uint64{0, base, base, size, size, 0x10000} {
		b = le.AppendUint64(b, n)
	}
	return append(b, code...)
}

// At entry the stack has argc, argv[0], argv[1].
var probeAMD64 = []byte{
	0x48, 0x89, 0xe3, // mov rbx, rsp
	0x48, 0x83, 0xec, 0x20, // sub rsp, 32
	0xb8, 228, 0, 0, 0, // mov eax, SYS_clock_gettime
	0xbf, 1, 0, 0, 0, // mov edi, CLOCK_MONOTONIC
	0x48, 0x89, 0xe6, // mov rsi, rsp
	0x0f, 0x05, // syscall
	0xb8, 2, 0, 0, 0, // mov eax, SYS_open
	0x48, 0x8b, 0x7b, 0x10, // mov rdi, [rbx+16]
	0xbe, 1, 0, 0, 0, // mov esi, O_WRONLY
	0x0f, 0x05, // syscall
	0x89, 0xc7, // mov edi, eax
	0xb8, 1, 0, 0, 0, // mov eax, SYS_write
	0x48, 0x89, 0xe6, // mov rsi, rsp
	0xba, 16, 0, 0, 0, // mov edx, 16
	0x0f, 0x05, // syscall
	0xb8, 60, 0, 0, 0, // mov eax, SYS_exit
	0x31, 0xff, // xor edi, edi
	0x0f, 0x05, // syscall
}

var probeARM64 = words(
	0x910003f3, // mov x19, sp
	0xd10083ff, // sub sp, sp, #32
	0xd2800e28, // mov x8, #113 (clock_gettime)
	0xd2800020, // mov x0, #1 (CLOCK_MONOTONIC)
	0x910003e1, // mov x1, sp
	0xd4000001, // svc #0
	0xd2800708, // mov x8, #56 (openat)
	0x92800c60, // mov x0, #-100 (AT_FDCWD)
	0xf9400a61, // ldr x1, [x19, #16]
	0xd2800022, // mov x2, #1 (O_WRONLY)
	0xd4000001, // svc #0
	0xd2800808, // mov x8, #64 (write)
	0x910003e1, // mov x1, sp
	0xd2800202, // mov x2, #16
	0xd4000001, // svc #0
	0xd2800ba8, // mov x8, #93 (exit)
	0xd2800000, // mov x0, #0
	0xd4000001, // svc #0
)

func words(w ...uint32) []byte {
	var b []byte
	for _, n := range w {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}
