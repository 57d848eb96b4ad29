#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Prepares a container's cgroups for Nomad, and then runs the command in its arguments, if any.
set -u
CG=/sys/fs/cgroup

# A container may own its cgroups and still have them mounted read-only.
for m in "$CG" "$CG"/*/; do
	mount -o remount,bind,rw "${m%/}" 2>/dev/null
done

# cgroup v2: only a cgroup without processes can enable controllers for its
# children, so move all processes into a leaf (as dind and k3d do). A failure
# shows in the agent's fingerprint.
if [ -f "$CG/cgroup.controllers" ]; then
	mkdir -p "$CG/init"
	while read -r p; do echo "$p" >"$CG/init/cgroup.procs" 2>/dev/null; done <"$CG/cgroup.procs"
	# shellcheck disable=SC2013 # the controllers are words of one line
	for c in $(cat "$CG/cgroup.controllers"); do
		echo "+$c" >"$CG/cgroup.subtree_control" 2>/dev/null
	done
fi

exec "$@"
