# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A container on another host, run by that host's Docker. It prints one line per second, and stores the last one in the
# task's local directory. See docs/plugins/remote.md for the requirements of the host, and counter.nomad.hcl for the
# configuration of the endpoint. To run a command in the container:
#   nomad alloc exec -job docker docker exec docker-count-0 ps
job "docker" {
  # on a node that can reach the host
  constraint {
    attribute = "${attr.driver.remote.endpoint.box.healthy}"
    value     = "true"
  }

  group "docker" {
    task "count" {
      driver      = "remote"
      kill_signal = "SIGTERM" # the default is SIGINT

      config {
        endpoint = "box"
        command  = "sh"
        args = [
          # The script runs the container below the task's cgroup. It removes a container that the last run has left.
          "-ec", <<-END
            cgroup=$(grep -om 1 '/outrider-tasks-.*' /proc/self/cgroup)
            docker rm --force "$0" >/dev/null 2>&1 || true
            exec docker run --rm --init --name="$0" --cgroup-parent="$cgroup" "$@"
          END
          , "${NOMAD_JOB_NAME}-${NOMAD_TASK_NAME}-${NOMAD_ALLOC_INDEX}",
          "--log-driver=none", "--network=host", "--env=GREETING", "--volume=${NOMAD_TASK_DIR}:/local",
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
