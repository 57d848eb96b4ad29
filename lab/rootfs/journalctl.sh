#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Stands in for systemd's: the log of the one unit that there is, whatever is asked.
exec cat /run/systemctl/nomad.log
