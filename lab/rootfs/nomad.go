// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package rootfs

import _ "embed"

// nomadConfig is the file that HashiCorp's package installs, without its comments.
const nomadConfig = `data_dir  = "/opt/nomad/data"
bind_addr = "0.0.0.0"

server {
  enabled          = true
  bootstrap_expect = 1
}

client {
  enabled = true
  servers = ["127.0.0.1"]
}
`

// quickConfig is for a test's patience, and for a disk that is fuller than a server's.
const quickConfig = `disable_update_check = true

server {
  raft_multiplier = 1
}

client {
  gc_disk_usage_threshold  = 99
  gc_inode_usage_threshold = 99
}
`

//go:embed systemctl.sh
var systemctl string

//go:embed journalctl.sh
var journalctl string
