// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import "golang.org/x/sys/unix"

const sysFstatat = unix.SYS_NEWFSTATAT

const initMachine = 62 // EM_X86_64

// initCode is the code of initProgram. A sigaction and the name of the process follow it.
const initCode = "" +
	"\xbf\x11\x00\x00\x00" + // mov $17, %edi (SIGCHLD)
	"\x48\x8d\x35\x2b\x00\x00\x00" + // lea ignored(%rip), %rsi
	"\x31\xd2" + // xor %edx, %edx
	"\x41\xba\x08\x00\x00\x00" + // mov $8, %r10d
	"\xb8\x0d\x00\x00\x00" + // mov $13, %eax (rt_sigaction)
	"\x0f\x05" + // syscall
	"\xbf\x0f\x00\x00\x00" + // mov $15, %edi (PR_SET_NAME)
	"\x48\x8d\x35\x30\x00\x00\x00" + // lea name(%rip), %rsi
	"\xb8\x9d\x00\x00\x00" + // mov $157, %eax (prctl)
	"\x0f\x05" + // syscall
	"\xb8\x22\x00\x00\x00" + // loop: mov $34, %eax (pause)
	"\x0f\x05" + // syscall
	"\xeb\xf7" // jmp loop
