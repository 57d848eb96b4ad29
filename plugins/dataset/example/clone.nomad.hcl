# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Reads a volume that was made from a snapshot of another: see notes-before.volume.hcl.
job "clone" {
  type = "batch"

  group "clone" {
    volume "before" {
      type            = "host"
      source          = "notes-before"
      read_only       = true
      access_mode     = "single-node-reader-only"
      attachment_mode = "file-system"
    }

    task "read" {
      driver = "exec-lite"
      user   = "nobody"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo when the snapshot was made:; cat -n /before/runs"]
      }

      volume_mount {
        volume      = "before"
        destination = "/before"
        read_only   = true
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
