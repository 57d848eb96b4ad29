# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Faster elections for tests, and limits for a disk that is fuller than a server's.
disable_update_check = true

server {
  raft_multiplier = 1
}

client {
  gc_disk_usage_threshold  = 99
  gc_inode_usage_threshold = 99
}
