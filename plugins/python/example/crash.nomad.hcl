# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A program that ends with an exception. The traceback is in its output, as ever; what
# it comes to is among the task's events, where Nomad and its web UI show it:
#   nomad job run crash.nomad.hcl     (or: go tool mage lab:run plugins/python/example/crash.nomad.hcl)
#   nomad alloc status <id>   ->   Python: ModuleNotFoundError: No module named 'requests' (app.py:12)
# File and line are where the program's own code was last.
job "crash" {
  type = "batch"

  group "crash" {
    # once is enough
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "app" {
      driver = "python"

      config {
        script = "local/app.py"
        # what would help: requirements = ["requests"]
      }

      template {
        destination = "local/app.py"
        data        = <<EOF
import orders  # the other file, beside this one


def main():
    for order in orders.waiting():
        print("sending", order)
        send(order)


def send(order):
    # it is installed where this was written
    import requests

    requests.post("https://shop.example/orders", json=order).raise_for_status()


main()
EOF
      }

      template {
        destination = "local/orders.py"
        data        = <<EOF
def waiting():
    return [{"item": "telescope", "count": 1}]
EOF
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
