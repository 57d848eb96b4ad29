# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A locked dependency from a wheel in the job itself: nothing is downloaded, and only
# the wheel with this hash is installed.
#   nomad job run wheelhouse.nomad.hcl     (or: go tool mage lab:run plugins/python/example/wheelhouse.nomad.hcl)
# "nomad alloc status" shows that the environment was built. The next run (after
# nomad job stop -purge wheelhouse) takes it from the node's cache.
job "wheelhouse" {
  type = "batch"

  group "wheelhouse" {
    task "moon" {
      driver = "python"

      config {
        script = "local/moon.py"
        args   = ["2024-02-21", "7"] # sys.argv[1:]

        lock       = "local/requirements.lock"
        find_links = ["local/wheels"]
        offline    = true # use no index
      }

      # The lock: the exact files to install. "uv pip compile --generate-hashes" and
      # "pip-compile --generate-hashes" write this format; a uv.lock also works.
      template {
        destination = "local/requirements.lock"
        data        = <<EOF
moonphase==1.0 --hash=sha256:5a0cdb251e4e54fc0f1431b476dffd40d75eb06496305616a49928818ec711b0
EOF
      }

      # Each line appears immediately (nomad alloc logs -f): the driver turns off
      # Python's output buffering.
      template {
        destination = "local/moon.py"
        data        = <<EOF
import sys, time
from datetime import date, timedelta

from moonphase import lit, phase

first = date.fromisoformat(sys.argv[1])
for n in range(int(sys.argv[2])):
    day = first + timedelta(days=n)
    print(f"{day:%a %d %b %Y}  {lit(day):4.0%} lit  {phase(day)}")
    time.sleep(0.3)
EOF
      }

      # The wheel (its source is in the directory moonphase). A larger job would fetch its
      # wheels with an artifact block, or from an index that the node can reach.
      template {
        destination = "local/wheels/moonphase-1.0-py3-none-any.whl"
        data        = <<EOF
{{ base64Decode `
UEsDBBQACAAIAAAAAAAAAAAAAAAAAAAAAAAgAAAAbW9vbnBoYXNlLTEuMC5kaXN0LWluZm8vTUVUQURBVEHyTS1JTEksSdQNSy0q
zszPs1Iw0jPk8kvMTbVSyM3PzyvISCxO5YJLGuoZcAWlFpZmFqUW6wZUlmSABO1sjfXMuAABAAD//1BLBwh1NJwQRwAAAEoAAABQ
SwMEFAAIAAgAAAAAAAAAAAAAAAAAAAAAAB4AAABtb29ucGhhc2UtMS4wLmRpc3QtaW5mby9SRUNPUkR0zrFygjAAANDdbwkUq2lg
6AAEAcViYiyki4eFnJyFoEnLxa/v5DnxA+9eJ2U/nCvVWHPbsetWaavthXzZRszHPvOBOlev8O09iBe1yGleNcVJe3gwtwJdku+x
8UYSBgGMqdit/JvS6QGg5WyKLZIoyh5mWia9xY981Pvj+rChF4xC0xZ3TjpZ8fVvvkN15zpf0FEAeU/THsyDcASG6EN/itigjDf7
n+WKJeWVnMSdyG6ebRfj5q9M2ZUR4Lpw8kWjMKcYgNl/AAAA//9QSwcIZWA9gcwAAAAQAQAAUEsDBBQACAAIAAAAAAAAAAAAAAAA
AAAAAAAdAAAAbW9vbnBoYXNlLTEuMC5kaXN0LWluZm8vV0hFRUwEwDEKwzAMBdBdp9AFVFq66QKlWymlmR3ySQxGCrI8+PZ5ywE0
+SN6dVN+3O70giFKeij7yKgbgr7uKe8unxFodVXOGKBf2ZXP+RRzgxSbdAUAAP//UEsHCFduvYdVAAAATwAAAFBLAwQUAAgACAAA
AAAAAAAAAAAAAAAAAAAADAAAAG1vb25waGFzZS5weWySUUvcQBSF3+dXHEYKiU3S7NrVreCDqFBBXcEVC6WUMbnZDGRn0pmbqv++
zMQU1/YxkzvfOffM2cOZ7V+c3rSMpEqxbgmrgZ2uyeF04NY6L/Zwd3v+Lb/SFRlP+WVNhnWjyR3j+vYqnxelEFLKcLdvlSfYBtwS
ttYaWAOFWjFlaJzdjj9IGXRkNtyGWYVuMIq1NUhGK2yhHu3AaFXXxPsvaSGlFCIytopb6G1vHaOyPkOvhbi6vzldX65ucIL5l2Jx
UC6Wy+XiANgL1/2obg3B0NNojW10Y+iZs+jzNzm1IXFz8fDzehVJRwflbL4ojg4DhlvFwe+8LMu8nOXlIWbL49ln3K/PMigf1yzY
Wldro7okRWUHwz7qi9uvp3cXdzhBIgBATjZkBvmknrXZoHLkKzIcjhrtPOPXoByTezOz0Y+PdvAyGynN0HVvMGZnBLJT7yFmV0ik
QoiaGqgNJSHm45Er5XkIzWtTUUwpkibPGRTDhAyT+/VZOj5i2J71looYQ3itQHLEgzMI7J1oPqIsFsgxhZ3iA6YnfLUUy7RramVi
u8Ys32uMp9+dHUydTPvg018s9rEMMssfrwKd5l38Q6urFr1yPHW41r6C9mH0tcBl6M3sn/1myEMXkzn20Wvs4z8G0vAxF38CAAD/
/1BLBwjU+QoI7wEAAHUDAABQSwECFAMUAAgACAAAAAAAdTScEEcAAABKAAAAIAAAAAAAAAAAAAAApIEAAAAAbW9vbnBoYXNlLTEu
MC5kaXN0LWluZm8vTUVUQURBVEFQSwECFAMUAAgACAAAAAAAZWA9gcwAAAAQAQAAHgAAAAAAAAAAAAAApIGVAAAAbW9vbnBoYXNl
LTEuMC5kaXN0LWluZm8vUkVDT1JEUEsBAhQDFAAIAAgAAAAAAFduvYdVAAAATwAAAB0AAAAAAAAAAAAAAKSBrQEAAG1vb25waGFz
ZS0xLjAuZGlzdC1pbmZvL1dIRUVMUEsBAhQDFAAIAAgAAAAAANT5CgjvAQAAdQMAAAwAAAAAAAAAAAAAAKSBTQIAAG1vb25waGFz
ZS5weVBLBQYAAAAABAAEAB8BAAB2BAAAAAA=
` -}}
EOF
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
