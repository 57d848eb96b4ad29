#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Stands in for the program zfs of OpenZFS, by that of zfs-fuse 0.7.0, which is beside it as zfs.fuse.
zfs=$0.fuse
last=
for last in "$@"; do :; done

if [ "${1-}" = receive ]; then # both ends of a pipe can't run at the same time
  stream=$(mktemp) && cat >"$stream" && exec <"$stream" && rm "$stream" || exit
fi

# One at a time: of two programs that connect at once, the daemon may never answer the first (start_ioctl_thread in
# cmd_listener.c), and of two mounts it may mix up what its threads are told (zfsfuse_newfs in fuse_listener.c).
if [ -d /run/zfs ]; then
  exec 9</run/zfs
  flock 9 >/dev/null 2>&1 || exit
fi

case ${1-} in
get | unmount)
  if [ "$1" = get ]; then
    for word; do
      shift
      set -- "$@" "${word%%,keystatus*}" # without what OpenZFS has besides
    done
  fi
  # Next the dataset may be unmounted. The daemon stays busy for good if it is not told before of files that were
  # closed, which the kernel does in the background: an answer to another question comes after that.
  while read -r source dir _; do
    if [ "$source" = "$last" ]; then
      stat -f "$dir" >/dev/null 2>&1
      sleep 0.02
    fi
  done </proc/self/mounts
  ;;
set) # one property a command
  shift
  while [ $# -gt 2 ]; do
    "$zfs" set "$1" "$last" || exit
    shift
  done
  set -- set "$@"
  ;;
destroy | mount | rename | rollback)
  # After an unmount a dataset is busy for a while, which a rollback calls an I/O error. One that is mounted, or has a
  # snapshot that is held, stays busy.
  dataset=${last%@*}
  [ "$1" != rename ] || dataset=$2
  for _ in $(seq 500); do
    said=$("$zfs" "$@" 2>&1) && exit
    case $said in *busy* | *"I/O error"*) ;; *) break ;; esac
    ! grep -qsF " - fuse.zfs $dataset " /proc/[0-9]*/mountinfo || break
    ! "$zfs" get -H -r -o value userrefs "$dataset" 2>/dev/null | grep -q '[1-9]' || break
    sleep 0.02
  done
  printf '%s\n' "$said" >&2
  exit 1
  ;;
esac
exec "$zfs" "$@"
