# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

name      = "data"
type      = "host"
plugin_id = "dataset"

capacity_min = "32MiB"
capacity_max = "32MiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

parameters {
  class = "fast"
}
