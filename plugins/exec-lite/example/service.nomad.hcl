# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A typical service: an unprivileged user, limits, a graceful stop of all processes,
# and log rotation. Stop it with: nomad job stop service
job "service" {
  group "service" {
    task "clock" {
      driver       = "exec-lite"
      user         = "nobody"
      kill_signal  = "SIGTERM"
      kill_timeout = "5s"

      config {
        command   = "local/clock.sh"
        kill_mode = "all"

        logs {
          max_files     = 3
          max_file_size = 1
        }
        ulimit {
          nofile = "256"
        }
      }

      template {
        destination = "local/clock.sh"
        perms       = "755"
        data        = <<EOF
#!/bin/sh
trap 'echo "stopped in good order"; exit 0' TERM
echo "running as $(id -un), home $HOME"
while :; do
  date
  sleep 5 &
  wait $!
done
EOF
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
