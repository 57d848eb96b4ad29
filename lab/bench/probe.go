// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
)

// writeProbe writes the program whose start is timed. Its first instructions read the
// monotonic clock. Then it writes the 16 bytes of the time to the file that its first
// argument names, and exits. It is a static ELF file (elf(5)) of one page: a dynamic
// loader or a libc would add their own start to the time.
func writeProbe(path string) error {
	code, machine := probeAMD64, elf.EM_X86_64
	if runtime.GOARCH == "arm64" {
		code, machine = probeARM64, elf.EM_AARCH64
	} else if runtime.GOARCH != "amd64" {
		return fmt.Errorf("no probe for %s", runtime.GOARCH)
	}
	const base, headers = 0x400000, 64 + 56
	size := uint64(headers + len(code))
	return os.WriteFile(path, slices.Concat(
		littleEndian(elf.Header64{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
			Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
		}),
		littleEndian(elf.Prog64{
			Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
			Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x10000,
		}),
		code,
	), 0o755)
}

func littleEndian(v any) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, v)
	if err != nil {
		panic(err) // a type without a fixed size
	}
	return b
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

var probeARM64 = littleEndian([]uint32{
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
})
