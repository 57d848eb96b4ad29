# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

job "counter" {
  group "counter" {
    # Nomad drains only what has been healthy for so long, by default 10 s
    update {
      min_healthy_time = "1s"
    }
    migrate {
      min_healthy_time = "1s"
    }

    task "counter" {
      driver = "remote"

      config {
        endpoint = "box"
        command  = "/bin/sh"
        args     = ["-c", "n=0; while :; do n=$((n + 1)); echo $n $$; sleep 0.2; done"]
      }

      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
