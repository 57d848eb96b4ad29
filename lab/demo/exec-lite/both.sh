# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0
# shellcheck shell=sh disable=SC2154 # it continues demo.sh

say "kill -9 of both, and the first task exits with code 7 while neither runs"
fault "kill -9 $plugin $supervisor; kill -TERM $first" "plugin new, supervisor new."
note "The new supervisor has adopted the tasks."
