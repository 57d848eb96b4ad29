# A script that says itself what it needs (PEP 723), as "uv run" and "pipx run" take
# it. The driver reads its first lines: it chooses the interpreter by requires-python,
# and installs the dependencies.
#   nomad job run inline.nomad.hcl     (or: mage lab:run plugins/python/example/inline.nomad.hcl)
# With the script in a file, this prints the constraint by which its job finds a node:
#   nomad-driver-python constraint moon.py
job "inline" {
  type = "batch"

  group "inline" {
    task "moon" {
      driver = "python"

      config {
        script = "local/moon.py"

        # without these two, moonphase would be looked for on the node's index
        find_links = ["local/wheels"]
        offline    = true
      }

      template {
        destination = "local/moon.py"
        data        = <<EOF
# /// script
# requires-python = ">=3.8"
# dependencies = ["moonphase>=1,<2"]
# ///
import platform
from datetime import date

import moonphase

today = date.today()
print(f"Today: {moonphase.phase(today)}, {moonphase.lit(today):.0%} lit.")
print(f"{platform.python_implementation()} {platform.python_version()} says so, with {moonphase.__file__}")
EOF
      }

      # The wheel (its source is in moonphase/ beside this file).
      template {
        destination = "local/wheels/moonphase-1.0-py3-none-any.whl"
        data        = <<EOF
{{ base64Decode `
UEsDBBQACAAIAAAAAAAAAAAAAAAAAAAAAAAgAAAAbW9vbnBoYXNlLTEuMC5kaXN0LWluZm8vTUVUQURBVEHyTS1JTEksSdQNSy0q
zszPs1Iw0jPk8kvMTbVSyM3PzyvISCxO5YJLGuoZcAWlFpZmFqUW6wZUlmSABO1sjfXMuAABAAD//1BLBwh1NJwQRwAAAEoAAABQ
SwMEFAAIAAgAAAAAAAAAAAAAAAAAAAAAAB4AAABtb29ucGhhc2UtMS4wLmRpc3QtaW5mby9SRUNPUkR0zrFygjAAANDdb0moiIgZ
OgSJEakGc1p06gUCh6UlkdCm6dd38jr5A+/ep1K9boWpoe9NPXk1I7z2jXrakSNO8BED04pZuHiOaSAbxpmoi3JEiXZDEXWbytbI
HlZxHFLe5Gs8mDE9gWg+ecQWG0Je7qaQH8gvtXxtq7WjI5z/ZjnS+rBnbNGZ6ie4SFfvKY6pBcvpv+lpdyf4QL+qoNuey/eMpnCr
fJOHWbPr32630yBgdLYoJYHi3xew9GcPX5ysGE8AmPwFAAD//1BLBwhIdvIxywAAABABAABQSwMEFAAIAAgAAAAAAAAAAAAAAAAA
AAAAAB0AAABtb29ucGhhc2UtMS4wLmRpc3QtaW5mby9XSEVFTArPSE3N0Q1LLSrOzM+zUjDUM+ByT81LLUosyS+yUigHyZakFpdw
BeXnl+h6FusGlBal5mQmWSmUFJWmcoUkplspFFQa6+bl56XqJuZVcgECAAD//1BLBwhlQlniVAAAAFAAAABQSwMEFAAIAAgAAAAA
AAAAAAAAAAAAAAAAAAwAAABtb29ucGhhc2UucHlsklFv0zAUhd/9K46MkJKShqSlW5i0h2lMAglapLXaA0LITZ3YUmoX+4aNf4/s
NGgZPMa5/s65x4dzvlUSJyW8hG1ASuJorYE1EDgIkhkaZ4/DDykMOmlaUmFWoOuNIG0NEqdbRSALsbc9QYmuifd/pznnnLHIOApS
0MeTdYTa+gwnzdjn3fpm+2mzxjUW7/PVslhVVbVaAq/CdT+oWyNh5ONgjWx0Y+QTZdHnL+lEK9n67uHHl00kXS6LcrHKLy8ChpSg
4HdRFMW8KOfFBcrqqnyH3fY2g/BxzZysdQdtRJekqG1vyEd99vXjzf3dPa6RMADgow2egT+KJ21a1E76WhoKR412nvCzF46kezbT
6v3e9p5nA6Xpu+4ZxkxGwDvxEmKmQixljB1kA9HKJMR8NXA5/xBC89rUMqYUSaPnDIJgQobJbnubDo8Ytid9lHmMIbxWIDlJvTMI
7Ek0b1DkK8wxhp3iNcYnPFuKZZqa2pjYriHLlxrD6Tdne3NIxn3w9i8WM1RBpvp+Fug0TfEPStcKJ+Fo7PBB+xrah9FzgYvQm/Kf
/UrMQxeTBWY4aczwHwNp+FiwPwEAAP//UEsHCBIAWRu9AQAALAMAAFBLAQIUAxQACAAIAAAAAAB1NJwQRwAAAEoAAAAgAAAAAAAA
AAAAAACkgQAAAABtb29ucGhhc2UtMS4wLmRpc3QtaW5mby9NRVRBREFUQVBLAQIUAxQACAAIAAAAAABIdvIxywAAABABAAAeAAAA
AAAAAAAAAACkgZUAAABtb29ucGhhc2UtMS4wLmRpc3QtaW5mby9SRUNPUkRQSwECFAMUAAgACAAAAAAAZUJZ4lQAAABQAAAAHQAA
AAAAAAAAAAAApIGsAQAAbW9vbnBoYXNlLTEuMC5kaXN0LWluZm8vV0hFRUxQSwECFAMUAAgACAAAAAAAEgBZG70BAAAsAwAADAAA
AAAAAAAAAAAApIFLAgAAbW9vbnBoYXNlLnB5UEsFBgAAAAAEAAQAHwEAAEIEAAAAAA==
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
