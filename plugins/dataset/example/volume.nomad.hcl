# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Adds a line to a file in a volume, and prints the file with the lines of all earlier runs.
# Create the volume first:
#   nomad volume create notes.volume.hcl
job "notes" {
  type = "batch"

  group "notes" {
    volume "notes" {
      type            = "host"
      source          = "notes"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }

    task "write" {
      driver = "exec-lite"
      user   = "nobody"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $NOMAD_ALLOC_ID >>/notes/runs; cat -n /notes/runs"]
      }

      volume_mount {
        volume      = "notes"
        destination = "/notes"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
