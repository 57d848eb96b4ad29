# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The operator's file: what a job's author may have. It belongs to root.
class "fast" {
  backend = "btrfs"
  root    = "/srv/nomad" # a directory of a btrfs; with backend = "zfs" a dataset, "tank/nomad"

  default_capacity = "1GiB"
  max_capacity     = "20GiB"
  snapshot_reserve = 50 # percent
  snapshots        = "daily=7"

  allow = ["uid", "gid", "mode", "clone_from", "snapshots"]

  slots {
    count    = 8
    capacity = "10GiB"
  }
}

class "archive" {
  backend    = "btrfs"
  root       = "/srv/archive"
  namespaces = ["default", "team-*"]

  default_capacity = "10GiB"
  max_capacity     = "500GiB"
  on_delete        = "retain"

  properties {
    compression = "zstd"
  }
}
