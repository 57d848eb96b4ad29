# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A container on another host, run by that host's podman. It prints one line per second, and stores the last one in the
# task's local directory. See docs/plugins/remote.md for the requirements of the host, and counter.nomad.hcl for the
# configuration of the endpoint. To run a command in the container:
#   nomad alloc exec -job container podman exec container-count-0 ps
job "container" {
  # on a node that can reach the host
  constraint {
    attribute = "${attr.driver.remote.endpoint.box.healthy}"
    value     = "true"
  }

  group "container" {
    task "count" {
      driver      = "remote"
      kill_signal = "SIGTERM" # the default is SIGINT

      config {
        endpoint = "box"
        command  = "podman"
        args = [
          "run", "--rm", "--replace", "--name=${NOMAD_JOB_NAME}-${NOMAD_TASK_NAME}-${NOMAD_ALLOC_INDEX}",
          "--cgroups=disabled", "--log-driver=passthrough", "--init", "--network=host",
          "--env=GREETING", "--volume=${NOMAD_TASK_DIR}:/local",
          "docker.io/library/busybox",
          "sh", "-c", "n=0; while :; do n=$((n + 1)); echo \"$GREETING $n\" | tee /local/last; sleep 1; done",
        ]
      }

      env {
        GREETING = "hello"
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
