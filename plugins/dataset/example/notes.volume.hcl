# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A volume of the class "fast". It persists until "nomad volume delete", independent of its
# jobs:
#   nomad volume create notes.volume.hcl
name      = "notes"
type      = "host"
plugin_id = "dataset"

capacity_min = "32MiB"
capacity_max = "64MiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

parameters {
  class = "fast"
  uid   = "65534" # the job's tasks run as nobody
  gid   = "65534"
}
