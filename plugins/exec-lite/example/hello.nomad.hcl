# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A first job: prints two lines and exits.
#   nomad job run hello.nomad.hcl     (or: go tool mage lab:run plugins/exec-lite/example/hello.nomad.hcl)
job "hello" {
  type = "batch"

  group "hello" {
    task "hello" {
      driver = "exec-lite"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo \"Hello from $NOMAD_TASK_NAME, pid $$\"; echo 'Running without a helper process.'"]
      }

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
