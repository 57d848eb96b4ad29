# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# What an agent in a container needs; files with a later name win.
data_dir   = "/var/lib/nomad"
plugin_dir = "/usr/local/lib/nomad/plugins"
bind_addr  = "0.0.0.0" # published on the host's loopback only

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

server {
  enabled          = true
  bootstrap_expect = 1
  raft_multiplier  = 1
}

client {
  enabled = true
}
