# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The demo's job, with the volume.
variable "name" {}
variable "script" {}

job "demo" {
  id   = var.name
  name = var.name
  type = "batch"

  group "g" {
    volume "data" {
      type            = "host"
      source          = "data"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }

    # a task that ends is not restarted: the demo shows its output
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "task" {
      driver = "exec-lite"

      config {
        command = "/bin/sh"
        args    = ["-c", var.script]
      }

      volume_mount {
        volume      = "data"
        destination = "/data"
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
