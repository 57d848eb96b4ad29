# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A program that ends with an exception. The traceback is in its output. The exception
# is also a task event, which Nomad and its web UI show:
#   nomad job run crash.nomad.hcl     (or: go tool mage lab:run plugins/python/example/crash.nomad.hcl)
#   nomad alloc status <id>   ->   Python: ModuleNotFoundError: No module named 'requests' (app.py:12)
# File and line are those of the innermost frame in the program's own code.
job "crash" {
  type = "batch"

  group "crash" {
    # do not retry
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
        # to fix it: requirements = ["requests"]
      }

      template {
        destination = "local/app.py"
        data        = <<EOF
import orders  # the file below


def main():
    for order in orders.waiting():
        print("sending", order)
        send(order)


def send(order):
    # installed only on the author's machine
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
