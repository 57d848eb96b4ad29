// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package rootfs

import _ "embed"

var (
	//go:embed nomad.hcl
	nomadConfig string
	//go:embed quick.hcl
	quickConfig string
	//go:embed systemctl.sh
	systemctl string
	//go:embed journalctl.sh
	journalctl string
)
