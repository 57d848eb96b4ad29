# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The demo's job.
variable "user" {}

job "talker" {
  group "g" {
    task "talker" {
      driver = "exec-lite"
      user   = var.user

      config {
        command = "/bin/sh"
        args    = ["${NOMAD_TASK_DIR}/talk.sh"]
      }

      template {
        destination = "local/talk.sh"
        data        = <<-END
          cd $NOMAD_TASK_DIR
          if [ -e told ]; then
            echo "I am a new process with the same reservation."
          else
            echo "I am $(id -un). My variables for the stick:"
            env | grep ^USB_ZIGBEE_ | sort | sed 's/^/  /'
            echo "Files in $(dirname $USB_ZIGBEE_TTY):"
            ls -l $(dirname $USB_ZIGBEE_TTY) | sed 1d | sed 's/^/  /'
            touch told
          fi
          n=0
          while sleep 0.5; do
            n=$((n+1))
            if (stty raw -echo <$USB_ZIGBEE_TTY) 2>/dev/null; then
              answer=$( (exec 3<>$USB_ZIGBEE_TTY && echo "hello $n" >&3 && timeout 1 head -n 1 <&3) 2>/dev/null)
              echo "hello $n -> $${answer:-no answer}"
            else
              echo "hello $n -> no stick"
            fi
          done
        END
      }

      resources {
        cpu    = 20
        memory = 16
        device "zigbee" {}
      }
    }
  }
}
