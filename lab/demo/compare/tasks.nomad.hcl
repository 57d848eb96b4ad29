# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The tasks of one driver. A task that ends is not restarted: the demo shows its state as a dot.
variable "driver" {}
variable "count" { type = number }

job "compare" {
  id   = var.driver
  name = var.driver

  group "g" {
    count = var.count

    ephemeral_disk {
      size = 10
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "task" {
      driver       = var.driver
      kill_timeout = "1s"

      config {
        command = "/bin/sleep"
        args    = ["86400"]
      }

      logs {
        max_files     = 1
        max_file_size = 1
      }

      resources {
        cpu    = 1
        memory = 10
      }
    }
  }
}
