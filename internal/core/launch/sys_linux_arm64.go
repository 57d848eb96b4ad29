// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import "golang.org/x/sys/unix"

const sysFstatat = unix.SYS_FSTATAT

const initMachine = 183 // EM_AARCH64

// initCode is the code of initProgram. A sigaction and the name of the process follow it.
const initCode = "" +
	"\x20\x02\x80\xd2" + // mov x0, #17 (SIGCHLD)
	"\x01\x02\x00\x10" + // adr x1, ignored
	"\xe2\x03\x1f\xaa" + // mov x2, xzr
	"\x03\x01\x80\xd2" + // mov x3, #8
	"\xc8\x10\x80\xd2" + // mov x8, #134 (rt_sigaction)
	"\x01\x00\x00\xd4" + // svc #0
	"\xe0\x01\x80\xd2" + // mov x0, #15 (PR_SET_NAME)
	"\x41\x02\x00\x10" + // adr x1, name
	"\xe8\x14\x80\xd2" + // mov x8, #167 (prctl)
	"\x01\x00\x00\xd4" + // svc #0
	"\xe0\x03\x1f\xaa" + // loop: mov x0, xzr
	"\xe1\x03\x1f\xaa" + // mov x1, xzr
	"\xe2\x03\x1f\xaa" + // mov x2, xzr
	"\xe3\x03\x1f\xaa" + // mov x3, xzr
	"\x28\x09\x80\xd2" + // mov x8, #73 (ppoll)
	"\x01\x00\x00\xd4" + // svc #0
	"\xfa\xff\xff\x17" // b loop
