# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

root       = "${state_dir}/usb"
rescan     = "200ms"
shadow_dir = "${state_dir}/usb-nodes"
grace      = "1m"

device "zigbee" {
  id   = "10c4:ea60"
  mode = "0666"
}
