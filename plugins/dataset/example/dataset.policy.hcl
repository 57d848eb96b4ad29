# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# What the plugin's token may do: see which allocations its node has.
node {
  policy = "read"
}

agent {
  policy = "read"
}

namespace "*" {
  capabilities = ["read-job"]
}
