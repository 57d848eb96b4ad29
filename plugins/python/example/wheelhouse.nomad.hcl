# A locked dependency from a wheelhouse that the job brings along: nothing is
# downloaded, and nothing but the wheel with this hash is installed.
#   nomad job run wheelhouse.nomad.hcl     (or: mage lab:run plugins/python/example/wheelhouse.nomad.hcl)
# "nomad alloc status" shows that the environment was built. The next time (after
# nomad job stop -purge wheelhouse) it comes from the node's cache.
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
        offline    = true # no index is asked for anything
      }

      # The lock: what is installed, to the byte. "uv pip compile --generate-hashes" and
      # "pip-compile --generate-hashes" write such files; uv.lock and pylock.toml do as well.
      template {
        destination = "local/requirements.lock"
        data        = <<EOF
moonphase==1.0 --hash=sha256:03f96b5abc279ce93fc98a8bfd355db7d8b011e1733db2062d62c5d439c83898
EOF
      }

      # Each line is seen at once (nomad alloc logs -f): the driver has Python not
      # hold output back.
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

      # The wheel (its source is in moonphase/ beside this file). A larger job would have
      # an artifact block fetch its wheels, or an index that the node can reach.
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
