# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A task that exceeds its memory limit. The kernel kills it, and an event reports it:
#   nomad alloc status <id>   ->   OOM: killed at 32 MiB of memory
# (on a node with cgroups; without cgroups it succeeds)
job "oom" {
  type = "batch"

  group "oom" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "greedy" {
      driver = "exec-lite"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo 'taking 100 MB'; head -c 100000000 /dev/zero | tail -c 100000000 >/dev/null"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
