# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Selects one of several identical sticks by its id. "nomad-device-usb list" and
# "nomad node status -verbose -self" print the id.
#
# The first constraint selects the device on its node. The second one, with the same
# id, selects the node: the scheduler checks only one of several nodes with the same
# devices and attributes.
job "pinned" {
  type = "batch"

  group "pinned" {
    task "which" {
      driver = "exec-lite"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo $USB_ZIGBEE_ID in port $USB_ZIGBEE_PORT is $USB_ZIGBEE_TTY; ls -lL $USB_ZIGBEE_TTY"]
      }

      resources {
        cpu    = 50
        memory = 32

        device "zigbee" {
          constraint {
            attribute = "${device.ids}"
            operator  = "set_contains"
            value     = "10c4:ea60:0001"
          }
          constraint {
            attribute = "${device.attr.ids}"
            operator  = "set_contains"
            value     = "10c4:ea60:0001"
          }
        }
      }
    }
  }
}
