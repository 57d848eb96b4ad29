# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The demo's job: three tasks with a driver. Their arguments begin with a mark, by which the demo finds them.
variable "driver" {}
variable "mark" {}

job "demo" {
  id   = "demo-${var.driver}"
  name = "demo-${var.driver}"

  group "g" {
    count = 3

    # a task that ends is not restarted: the demo shows its exit code
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "task" {
      driver = var.driver

      config {
        command = "/bin/sh"
        args    = ["-c", "${var.mark}\ntrap 'exit 7' TERM; while :; do sleep 1 & wait $!; done"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
