#!/bin/bash
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Replaces systemd's program, with the unit of HashiCorp's package: SIGINT ends only the agent (KillSignal=SIGINT,
# KillMode=process). A start returns when the node is ready and has exactly those of our drivers that the agent loads:
# for a moment the server still lists the previous ones. A user takes longer to type the next command.
set -eu
state=/run/systemctl
mkdir -p "$state"

running() { [ -e "$state/pid" ] && kill -0 "$(cat "$state/pid")" 2>/dev/null; }

loads() { # whether the agent loads a driver
  [ -x "/opt/nomad/data/plugins/nomad-driver-$1" ] && grep -qs "^ *plugin \"nomad-driver-$1\"" /etc/nomad.d/*.hcl
}

settled() {
  nomad node status -self -json >"$state/node" 2>/dev/null && grep -q '"Status": "ready"' "$state/node" || return 1
  local driver
  for driver in exec-lite python; do
    if loads "$driver"; then
      grep -q "\"driver.$driver\": \"1\"" "$state/node" || return 1
    else
      ! grep -q "\"driver.$driver\": \"1\"" "$state/node" || return 1
    fi
  done
}

start() {
  running && return
  setsid nomad agent -config /etc/nomad.d >>"$state/nomad.log" 2>&1 </dev/null &
  echo $! >"$state/pid"
  for _ in $(seq 600); do # for minutes: the machine may be busy
    running || { tail -n 20 "$state/nomad.log" >&2; echo "nomad.service failed" >&2; return 1; }
    settled && return
    sleep 0.2
  done
  echo "nomad.service runs, but a plugin is not healthy" >&2
}

stop() {
  running || return 0
  kill -INT "$(cat "$state/pid")"
  while running; do sleep 0.05; done
  rm "$state/pid"
}

case "$*" in
"start nomad" | "enable --now nomad") start ;;
"stop nomad") stop ;;
"restart nomad") stop; start ;;
"reload nomad") kill -HUP "$(cat "$state/pid")" ;;
"is-active nomad") if running; then echo active; else echo inactive; exit 3; fi ;;
"enable --now zfs-fuse")
  mkdir -p /run/zfs /run/lock/zfs
  setsid zfs-fuse --no-daemon --no-kstat-mount >>"$state/zfs-fuse.log" 2>&1 </dev/null &
  until zpool list >/dev/null 2>&1; do sleep 0.2; done
  ;;
daemon-reload) ;;
*) echo "systemctl: only nomad's start, stop, restart, reload and is-active are supported, not \"$*\"" >&2; exit 1 ;;
esac
