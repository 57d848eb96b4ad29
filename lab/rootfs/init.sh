# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# shellcheck shell=sh
# This is process 1 of a root, in new namespaces: $1 is the root's directory, $2 Nomad's program.
set -e
umask 022
mount --make-rprivate /
mount --bind "$1" "$1"
mount --bind "$2" "$1/usr/bin/nomad"
cd "$1"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs shm dev/shm

hostname outrider-root
ip link set lo up
ip link add eth0 type veth peer name eth1
ip link set eth1 up
ip link set eth0 up
ip address add 192.168.77.2/24 dev eth0
ip route add default via 192.168.77.1
ip route add unreachable 169.254.0.0/16 # Nomad queries cloud metadata there, and would wait

pivot_root . mnt
umount -l mnt
cd /

# as the scripts of Nomad's package do
useradd --system --user-group --home-dir /etc/nomad.d --shell /bin/false nomad
mkdir -p /opt/nomad/data
chown nomad:nomad /opt/nomad/data
chown -R nomad:nomad /etc/nomad.d

echo ready
exec >/dev/null

# bash reaps every process that becomes its child
exec bash -c 'while read -r; do :; done'
