# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The plugin's token may read the allocations of its node.
node {
  policy = "read"
}

agent {
  policy = "read"
}

namespace "*" {
  capabilities = ["read-job"]
}
