# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The file of HashiCorp's package, without its comments.
data_dir  = "/opt/nomad/data"
bind_addr = "0.0.0.0"

server {
  enabled          = true
  bootstrap_expect = 1
}

client {
  enabled = true
  servers = ["127.0.0.1"]
}
