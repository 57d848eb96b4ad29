# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Installs a plugin on every client of one architecture: each client downloads the zip of a
# release, checks its sum, runs the binary's own installer, and restarts its agent if that has
# changed something. Tasks go on. It needs raw_exec, and an agent that is root.

variable "source" {
  description = "The address of the zip, as the clients reach it"
}

variable "checksum" {
  description = "sha256: and the sum that the release's SHA256SUMS has for the zip"
}

variable "binary" {
  default = "nomad-driver-exec-lite"
}

variable "arch" {
  default = "amd64"
}

variable "datacenters" {
  type    = list(string)
  default = ["*"]
}

variable "flags" {
  description = "More flags of install"
  default     = ""
}

variable "restart" {
  default = "systemctl restart nomad"
}

job "outrider-rollout" {
  type        = "sysbatch"
  datacenters = var.datacenters

  constraint {
    attribute = "${attr.cpu.arch}"
    value     = var.arch
  }

  group "rollout" {
    restart {
      attempts = 0 # a failure is to be looked at
      mode     = "fail"
    }

    task "install" {
      driver = "raw_exec"

      artifact {
        source = var.source
        options {
          checksum = var.checksum
        }
      }

      config {
        command = "/bin/sh"
        args = ["-euc", <<-EOF
          said=$(local/${var.binary} install ${var.flags})
          echo "$said"
          case $said in
          *"Now restart"*) ${var.restart} ;;
          esac
        EOF
        ]
      }

      resources {
        cpu    = 100
        memory = 256
      }
    }
  }
}
