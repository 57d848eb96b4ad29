#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Removes the directories that an rpm created, if Nomad is not installed; dpkg does the same by itself. The package does
# not own the parents of the plugin directories: it would change the owner and mode of those that Nomad created.
if [ "$1" = 0 ] && ! command -v nomad >/dev/null; then
  rmdir --ignore-fail-on-non-empty /opt/nomad/data/plugins /opt/nomad/data/host_volume_plugins \
    /opt/nomad/data /opt/nomad /etc/nomad.d 2>/dev/null || :
fi
