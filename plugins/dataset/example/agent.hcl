# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# For the agent's configuration directory, /etc/nomad.d. This link makes the same binary a host
# volume plugin:
#   ln -s /opt/nomad/data/plugins/nomad-device-dataset /opt/nomad/data/host_volume_plugins/dataset
# Both read /etc/outrider/dataset.hcl.
plugin "nomad-device-dataset" {
  config {
    api {
      token_file = "/etc/outrider/dataset.token" # with ACLs: a token with the policy dataset.policy.hcl
    }
  }
}
