#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Replaces systemd's program: prints the log of the only unit, whatever the arguments.
exec cat /run/systemctl/nomad.log
