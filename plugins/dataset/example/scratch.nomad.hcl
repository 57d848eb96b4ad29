# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Scratch space with a limit, for this task only. It is freed when the task has ended. The next
# task gets an empty one.
job "scratch" {
  type = "batch"

  group "scratch" {
    task "sort" {
      driver = "exec-lite"
      user   = "nobody"

      config {
        command = "/bin/sh"
        args    = ["local/sort.sh"]
      }

      template {
        destination = "local/sort.sh"
        data        = <<END
env | grep ^DATASET_ | sort
echo "files: $(ls -A /scratch | wc -l)"
seq 100000 | shuf >/scratch/unsorted
sort -n -T /scratch /scratch/unsorted | tail -n 1
END
      }

      resources {
        cpu    = 100
        memory = 64

        # or device "zfs/dataset/fast" {}
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
