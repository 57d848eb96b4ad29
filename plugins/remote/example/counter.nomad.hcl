# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Counts on a remote host. Drain its Nomad node, or cut its power: another node takes the
# process over, and the numbers go on.
#   nomad job run counter.nomad.hcl     (or: mage lab:up -remote lab:run plugins/remote/example/counter.nomad.hcl)
#   nomad node drain -enable -yes <node>
#   nomad logs -f -job counter
job "counter" {
  group "counter" {
    task "counter" {
      driver = "remote"

      config {
        endpoint = "box" # by its name in the agent's configuration
        command  = "/bin/sh"
        args     = ["local/count.sh"]
      }

      # what is in local/ and secrets/ is copied to the host
      template {
        destination = "local/count.sh"
        data        = <<EOF
trap 'echo "process $$ ends at $n"; exit 0' TERM
n=0
while :; do
  n=$((n + 1))
  echo "$n, by process $$ of $(id -un)"
  sleep 1 &
  wait $!
done
EOF
      }

      # of the Nomad node, for which the task is some records in the plugin
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
