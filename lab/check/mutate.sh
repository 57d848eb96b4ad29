#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Runs a command as root where its mistakes do no harm: in PID, mount and cgroup namespaces of
# its own, with cgroups of its own as the only ones, and with nothing writable but WRITABLE, a
# new /tmp and /run. When the command ends, so do all processes that it started.
set -eu

if [ "${1:-}" != inside ]; then
  name=outrider-mutate-$$
  # shellcheck disable=SC2317 # the trap calls it
  finish() {
    awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts | while read -r mount; do
      for _ in $(seq 100); do # its last process may still be ending
        [ -d "$mount/$name" ] || break
        find "$mount/$name" -depth -type d -exec rmdir {} \; 2>/dev/null || sleep 0.1
      done
    done
  }
  trap finish EXIT
  trap 'exit 130' INT TERM
  awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts | while read -r mount; do
    mkdir "$mount/$name"
    for file in cpuset.cpus cpuset.mems; do # v1: no process may join without
      if [ -e "$mount/$file" ] && [ -e "$mount/tasks" ]; then cat "$mount/$file" >"$mount/$name/$file"; fi
    done
  done
  # the child joins, not this shell, which removes the cgroups
  NAME=$name sh -euc '
    awk "\$3 ~ /^cgroup2?\$/ { print \$2 }" /proc/mounts | while read -r mount; do echo $$ >"$mount/$NAME/cgroup.procs"; done
    exec unshare --mount --pid --fork --cgroup --kill-child --mount-proc sh "$0" inside "$@"' "$0" "$@"
  exit
fi
shift

mounts=$(awk '$3 ~ /^cgroup2?$/ { print $2, $3, $4 }' /proc/mounts)
echo "$mounts" | while read -r mount type options; do
  controllers=$(echo "$options" | tr , '\n' | grep -vxE 'rw|ro|nosuid|nodev|noexec|relatime|nsdelegate|memory_recursiveprot' | paste -sd, -)
  case "$controllers" in name=*) controllers=none,$controllers ;; esac
  if [ "$type" = cgroup2 ]; then controllers=; fi
  umount -l "$mount" # the same file system is not mounted over itself
  mount -t "$type" ${controllers:+-o "$controllers"} cgroup "$mount"
done
for dir in $WRITABLE; do mount --bind "$dir" "$dir"; done
mount --bind / / && mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs -o mode=755 run /run
export TMPDIR=/tmp
exec "$@"
