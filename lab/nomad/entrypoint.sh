#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Runs a Nomad agent that can be stopped, killed and started again while the
# container, and the tasks in it, live on: while $HOLD exists the agent stays
# down. An agent that ends by itself ends the container, as anywhere.
# POSIX sh, since Nomad's official image has only busybox.
set -u
PIDFILE=/dev/shm/nomad-agent.pid # in memory: gone when the container starts again
HOLD=/dev/shm/nomad-agent.hold
CG=/sys/fs/cgroup

# A container may own its cgroups and still have them mounted read-only.
for m in "$CG" "$CG"/*/; do
	mount -o remount,bind,rw "${m%/}" 2>/dev/null
done

# cgroup v2: only a cgroup without processes can hand controllers down, so
# everybody here moves into a leaf (as dind and k3d do). Failure shows in the
# agent's own fingerprint.
if [ -f "$CG/cgroup.controllers" ]; then
	mkdir -p "$CG/init"
	while read -r p; do echo "$p" >"$CG/init/cgroup.procs" 2>/dev/null; done <"$CG/cgroup.procs"
	# shellcheck disable=SC2013 # they are words of one line
	for c in $(cat "$CG/cgroup.controllers"); do
		echo "+$c" >"$CG/cgroup.subtree_control" 2>/dev/null
	done
fi

[ "${1-}" != cgroups ] || exit 0 # that is all a devcontainer wants

unset AWS_CA_BUNDLE
export NOMAD_SKIP_DOCKER_IMAGE_WARN=1
mkdir -p /var/lib/nomad /usr/local/lib/nomad/plugins
rm -f "$HOLD"

agent=
trap 'touch "$HOLD"; [ -n "$agent" ] && kill -INT "$agent"; exit 0' TERM INT

while :; do
	nomad agent -config /etc/nomad.d "$@" &
	agent=$!
	echo "$agent" >"$PIDFILE.new"
	mv "$PIDFILE.new" "$PIDFILE" # whoever finds the file finds the number in it
	wait "$agent"
	code=$?
	# before the file goes: whoever waited for that may take the hold away at once
	[ -e "$HOLD" ] || exit "$code"
	rm -f "$PIDFILE"
	agent=
	while [ -e "$HOLD" ]; do sleep 0.05; done
done
