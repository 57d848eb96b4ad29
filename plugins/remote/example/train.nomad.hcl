# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Trains a model on a remote host: the data are an artifact, the program is a template, and
# the task is limited there. It ends once, even if its Nomad node is lost meanwhile.
#   python3 -m http.server --bind 127.0.0.1 --directory data 8000
#   nomad job run train.nomad.hcl     (or: mage lab:up -remote lab:run plugins/remote/example/train.nomad.hcl)
variable "data" {
  description = "URL of a file with lines of x,y"
  default     = "http://127.0.0.1:8000/points.csv"
}

job "train" {
  type = "batch"

  group "train" {
    task "fit" {
      driver = "remote"

      config {
        endpoint = "box" # by its name in the agent's configuration
        command  = "awk"
        args     = ["-F,", "-f", "local/fit.awk", "local/points.csv"]

        resources {
          cpu    = "2"
          memory = "256MiB"
        }
      }

      artifact {
        source      = var.data
        destination = "local/"
      }

      template {
        destination = "local/fit.awk"
        data        = <<EOF
# gradient descent for y = a + b x
NR > 1 { x[++n] = $1; y[n] = $2 }
END {
  for (epoch = 1; epoch <= 400; epoch++) {
    loss = da = db = 0
    for (i = 1; i <= n; i++) {
      e = a + b * x[i] - y[i]
      loss += e * e / n
      da += 2 * e / n
      db += 2 * e * x[i] / n
    }
    a -= 0.05 * da
    b -= 0.05 * db
    if (epoch % 100 == 0) printf "epoch %d, loss %.4f\n", epoch, loss
  }
  printf "y = %.2f + %.2f x\n", a, b
}
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
