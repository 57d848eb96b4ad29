# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

zfs = "{{.Program}}"

# for volumes and scratch
class "fast" {
  root             = "{{.Root}}/fast"
  min_capacity     = "16MiB"
  default_capacity = "64MiB"
  max_capacity     = "512MiB"
  snapshot_reserve = 100
  allow            = ["uid", "gid", "mode", "clone_from"]
  trash_ttl        = "1h"

  slots {
    count    = 4
    capacity = "64MiB"
  }
}

# stricter
class "strict" {
  root             = "{{.Root}}/strict"
  min_capacity     = "16MiB"
  default_capacity = "16MiB"
  max_capacity     = "64MiB"
  namespaces       = ["default"]
  on_delete        = "destroy"
}
