# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The demo's job. DRIVER, JOB and COUNT are filled in by it.
job "JOB" {
  group "g" {
    count = COUNT

    # a task that ends is not started again: its exit code is what is shown
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "task" {
      driver = "DRIVER"

      config {
        command = "/bin/sh"
        args    = ["-c", "# demo task\ntrap 'exit 7' TERM; while :; do sleep 1 & wait $!; done"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
