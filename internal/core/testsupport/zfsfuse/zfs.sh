#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Emulates OpenZFS' program zfs with the one of zfs-fuse 0.7.0, which is in the same directory as zfs.fuse.
zfs=$0.fuse
last=
for last in "$@"; do :; done

if [ "${1-}" = receive ]; then # send and receive can't run at the same time: buffer the stream
  stream=$(mktemp) && cat >"$stream" && exec <"$stream" && rm "$stream" || exit
fi

# Run one program at a time. With two at once, the daemon may never reply to the first (start_ioctl_thread in
# cmd_listener.c). With two mounts, it may mix up messages to its threads (zfsfuse_newfs in fuse_listener.c).
if [ -d /run/zfs ]; then
  exec 9</run/zfs
  flock 9 >/dev/null 2>&1 || exit
fi

case ${1-} in
get | unmount)
  if [ "$1" = get ]; then
    for word; do
      shift
      set -- "$@" "${word%%,keystatus*}" # drop the properties that only OpenZFS has
    done
  fi
  # The dataset may be unmounted next. The daemon stays busy permanently unless the kernel has reported closed files
  # first, which it does in the background. The reply to another request (-e) comes after these reports.
  while read -r source dir _; do
    if [ "$source" = "$last" ]; then
      [ -e "$dir/.$$" ]
      sleep 0.02
    fi
  done </proc/self/mounts
  ;;
set) # one property per command
  shift
  while [ $# -gt 2 ]; do
    "$zfs" set "$1" "$last" || exit
    shift
  done
  set -- set "$@"
  ;;
destroy | mount | rename | rollback)
  # After an unmount a dataset is busy for a while, which rollback reports as an I/O error: retry. A mounted dataset, or
  # one with a snapshot on hold, stays busy: fail. Most often the second try succeeds, before the slow search for these.
  dataset=${last%@*}
  [ "$1" != rename ] || dataset=$2
  try=0
  while [ $try -lt 500 ]; do
    said=$("$zfs" "$@" 2>&1) && exit
    case $said in *busy* | *"I/O error"*) ;; *) break ;; esac
    if [ $try -gt 0 ]; then
      ! grep -qsF " - fuse.zfs $dataset " /proc/[0-9]*/mountinfo || break
      ! "$zfs" get -H -r -o value userrefs "$dataset" 2>/dev/null | grep -q '[1-9]' || break
    fi
    try=$((try + 1))
    sleep 0.02
  done
  printf '%s\n' "$said" >&2
  exit 1
  ;;
esac
"$zfs" "$@" # a child: it ends with its request even if this script is killed, as OpenZFS' program does in the kernel
