# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The simulated stick: it is plugged in while this job runs.
variable "stick" {}
variable "state" {}
variable "id" {}

job "stick" {
  group "stick" {
    task "stick" {
      driver = "exec-lite"

      config {
        command = var.stick
        args    = ["-id", var.id, "${var.state}/usb"]
      }

      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
