# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A serial stick: prints its variables and its node, writes a line, and reads the answer.
#   go tool mage lab:up -usb=sim
#   go tool mage lab:run plugins/usb/example/serial.nomad.hcl
# The simulated stick answers with "stick: " and the line. The agent's configuration
# has a block for it:
#   plugin "nomad-device-usb" {
#     config {
#       device "zigbee" {
#         id    = "10c4:ea60"
#         nodes = ["tty"]
#       }
#     }
#   }
job "serial" {
  type = "batch"

  group "serial" {
    task "talk" {
      driver = "exec-lite"

      config {
        command = "/bin/sh"
        args    = ["local/talk.sh"]
      }

      template {
        destination = "local/talk.sh"
        data        = <<EOF
env | grep ^USB_ | sort
ls -lL "$USB_ZIGBEE_TTY"
exec 3<>"$USB_ZIGBEE_TTY"
echo "hello from $NOMAD_ALLOC_ID" >&3
read -r answer <&3
echo "$answer"
EOF
      }

      resources {
        cpu    = 50
        memory = 32

        device "zigbee" {}
      }
    }
  }
}
