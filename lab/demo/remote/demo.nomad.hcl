# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The demo's job: a counter on a host that two nodes reach.
job "counter" {
  constraint {
    attribute = "${attr.driver.remote.endpoint.box.healthy}"
    value     = "true"
  }

  group "counter" {
    # when it drains a node, Nomad moves only tasks that have been healthy for this long, by default 10 s
    update {
      min_healthy_time = "1s"
    }
    migrate {
      min_healthy_time = "1s"
    }

    task "count" {
      driver = "remote"

      config {
        endpoint = "box"
        command  = "/bin/sh"
        args     = ["-c", "n=0; while :; do n=$((n + 1)); echo \"$n on $(uname -n), pid $$\"; sleep 1; done"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
