# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A counter on another host: it prints a line a second there, and Nomad has the lines.
#   go tool mage lab:up -remote=sim
#   go tool mage lab:run plugins/remote/example/counter.nomad.hcl
# The lab's host is an SSH server on this machine, which two of the lab's nodes reach. On a
# node of your own, the agent's configuration names the host:
#   plugin "nomad-driver-remote" {
#     config {
#       endpoint "box" {
#         ssh {
#           host      = "192.0.2.10"
#           user      = "nomad"
#           key_file  = "/etc/nomad.d/remote_key"
#           host_keys = ["ssh-ed25519 AAAA…"]
#         }
#       }
#     }
#   }
# Restart the agent, and the count goes on. Stop it with: nomad job stop counter
job "counter" {
  # on a node that reaches the host
  constraint {
    attribute = "${attr.driver.remote.endpoint.box.healthy}"
    value     = "true"
  }

  group "counter" {
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
