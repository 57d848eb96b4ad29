# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# One stick of several that are equal, by its id. "nomad-device-usb list" prints it,
# and so does "nomad node status -verbose -self".
#
# The first constraint chooses the device on its node. The second has the same id
# in it and chooses the node: to the scheduler, nodes with the same devices are all
# alike unless an attribute differs, and one look at any of them would do.
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
