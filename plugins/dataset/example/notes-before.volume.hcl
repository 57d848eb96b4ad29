# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A clone: a volume with the content of a snapshot of the volume "notes":
#   sudo nomad-device-dataset snapshot notes before
#   nomad volume create notes-before.volume.hcl
# Both volumes are on the same node. The snapshot can't be removed while this volume exists.
name      = "notes-before"
type      = "host"
plugin_id = "dataset"

capacity_min = "32MiB"
capacity_max = "64MiB"

capability {
  access_mode     = "single-node-reader-only"
  attachment_mode = "file-system"
}

parameters {
  class      = "fast"
  clone_from = "notes@before"
}
