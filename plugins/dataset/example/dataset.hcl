# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The operator's file: the classes that jobs can request. Only root may be able to change it.
class "fast" {
  root = "tank/nomad" # zfs create -o mountpoint=none tank/nomad

  default_capacity = "1GiB"
  max_capacity     = "20GiB"
  snapshot_reserve = 50 # percent

  allow = ["uid", "gid", "mode", "clone_from"]

  slots {
    count    = 8
    capacity = "10GiB"
  }
}

class "archive" {
  root       = "tank/archive"
  namespaces = ["default", "team-*"]

  default_capacity = "10GiB"
  max_capacity     = "500GiB"
  on_delete        = "retain"
}
