# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A counter on another host: it prints one line per second there. "nomad alloc logs" shows them.
#   go tool mage lab:up -remote=sim
#   go tool mage lab:run plugins/remote/example/counter.nomad.hcl
# In the lab, the host is an SSH server on this machine, which two of its nodes can reach. On
# your own node, add the host to the agent's configuration:
#   plugin "nomad-driver-remote" {
#     config {
#       endpoint "box" {
#         ssh {
#           host      = "192.0.2.10"
#           user      = "nomad"
#           key_file  = "/etc/outrider/remote_key"
#           host_keys = ["ssh-ed25519 AAAA…"]
#         }
#       }
#     }
#   }
# The count continues while the agent restarts. Stop it with: nomad job stop counter
job "counter" {
  # on a node that can reach the host
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
