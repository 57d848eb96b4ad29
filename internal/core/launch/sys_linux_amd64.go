// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import "golang.org/x/sys/unix"

const sysFstatat = unix.SYS_NEWFSTATAT
