# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Scratch is a device: a job requests it like any other device.
job "scratch" {
  type = "batch"

  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }

    task "task" {
      driver = "exec-lite"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo /scratch has $(ls -A /scratch | wc -l) files; dd if=/dev/zero of=/scratch/x bs=1M 2>&1 | grep -v records"]
      }

      resources {
        cpu    = 50
        memory = 32

        device "dataset" {
          constraint {
            attribute = "${device.model}"
            value     = "fast"
          }
        }
      }
    }
  }
}
