# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A web page from a container of a Docker or Podman engine. The service is announced with
# the address of the engine's host, wherever Nomad has placed the task. The image has to be
# there, or in a registry that the engine reaches.
#   nomad job run container.nomad.hcl     (or: mage lab:up -remote lab:run plugins/remote/example/container.nomad.hcl)
#   nomad service info remote-page
job "container" {
  group "web" {
    task "httpd" {
      driver = "remote"

      config {
        endpoint   = "engine" # by its name in the agent's configuration
        image      = "busybox:1.36"
        entrypoint = ["/bin/busybox", "sh", "-c"]
        args       = ["echo The page is on port 8088; exec busybox httpd -f -vv -p 8080 -h $NOMAD_TASK_DIR"]

        ports {
          http = "8080" # in the container
        }
        publish {
          http = "8088" # on the engine's host
        }
        resources {
          cpu    = "0.5"
          memory = "64MiB"
        }
      }

      template {
        destination = "local/index.html"
        data        = <<EOF
<h1>Hello from a container</h1>
<p>Job {{ env "NOMAD_JOB_NAME" }}, task {{ env "NOMAD_TASK_NAME" }}</p>
EOF
      }

      service {
        provider     = "nomad"
        name         = "remote-page"
        port         = "8088"
        address_mode = "driver"
      }

      # of the Nomad node, for which the task is some records in the plugin
      resources {
        cpu    = 10
        memory = 10
      }
    }
  }
}
