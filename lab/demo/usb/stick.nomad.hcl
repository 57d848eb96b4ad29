# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The simulated stick: it is plugged in while this job runs.
variable "plugins" {}
variable "state" {}
variable "id" {}

job "stick" {
  group "stick" {
    task "stick" {
      driver = "exec-lite"

      config {
        command = "${var.plugins}/nomad-device-usb"
        args    = ["simulate", "${var.state}/usb", "-id", var.id, "-serial", "0001"]
      }

      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
