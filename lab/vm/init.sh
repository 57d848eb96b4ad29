#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The first process of a VM of package vm. In the initramfs, run by busybox, it makes the host's files the root and
# mounts the file systems that systemd would mount. Then, run by the host's shell, it completes the setup, and serves
# the host by SSH over a virtio serial port. The machine is switched off when the connection ends.
set -eu

# delegate enables all controllers of a cgroup for its children.
delegate() {
	# shellcheck disable=SC2013 # the controllers are words of one line
	for controller in $(cat "$1/cgroup.controllers"); do
		echo "+$controller" >"$1/cgroup.subtree_control"
	done
}

# at DIR OPTION... creates a directory, and mounts a file system there
at() {
	dir=$1
	shift
	mkdir -p "$dir"
	mount "$@" "$dir"
}

initramfs() {
	/bin/busybox --install -s /bin
	at /proc -t proc proc
	at /sys -t sysfs sysfs
	at /dev -t devtmpfs dev
	for module in /modules/*; do
		insmod "$module"
	done
	# files on the host do not change while the VM runs, except for new ones, so they may be cached
	at /lower -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 host
	at /upper -t tmpfs -o mode=0755 upper # for changes
	mkdir /upper/files /upper/work
	at /new -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay
	at /new/proc -t proc -o nosuid,nodev,noexec proc
	at /new/sys -t sysfs -o nosuid,nodev,noexec sysfs
	at /new/dev -t devtmpfs -o nosuid,mode=0755 dev
	at /new/dev/pts -t devpts -o nosuid,noexec,mode=0620,gid=5,ptmxmode=0666 devpts
	at /new/dev/shm -t tmpfs -o nosuid,nodev,mode=1777 tmpfs
	at /new/dev/mqueue -t mqueue -o nosuid,nodev,noexec mqueue
	at /new/run -t tmpfs -o nosuid,nodev,mode=0755 tmpfs
	at /new/run/lock -t tmpfs -o nosuid,nodev,noexec,mode=1777 tmpfs
	at /new/sys/fs/cgroup -t cgroup2 -o nosuid,nodev,noexec,nsdelegate cgroup2
	at /new/sys/kernel/security -t securityfs -o nosuid,nodev,noexec securityfs
	# shellcheck disable=SC2154 # set by /config
	at "/new/lib/modules/$release" -o bind "/new$modules"
	ifconfig lo up
	hostname vm
	cp /init /config /new/run
	umount /dev /sys /proc
	exec switch_root /new /bin/sh /run/init
}

machine() {
	export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
	mount --make-rshared / # as systemd does
	ln -s /proc/self/fd /dev/fd
	for number in 0 1 2; do
		ln -s /proc/self/fd/$number "/dev/$(echo stdin stdout stderr | cut -d ' ' -f $((number + 1)))"
	done
	# devices whose module is loaded when they are opened (depmod's modules.devname), unless it is built in
	mkdir -p /dev/net
	[ -e /dev/fuse ] || mknod -m 666 /dev/fuse c 10 229
	[ -e /dev/net/tun ] || mknod -m 666 /dev/net/tun c 10 200
	[ -e /dev/loop-control ] || mknod -m 600 /dev/loop-control c 10 237
	modprobe configfs
	at /sys/kernel/config -t configfs -o nosuid,nodev,noexec configfs
	# shellcheck disable=SC2154 # set by /run/config
	if [ -n "$disk" ]; then
		modprobe -a virtio_blk ext4
		at "$disk" -t ext4 /dev/vda
	fi
	delegate /sys/fs/cgroup
	mkdir /sys/fs/cgroup/system.slice
	delegate /sys/fs/cgroup/system.slice
	# systemd's default limits for services
	# shellcheck disable=SC3045 # every Debian's sh has them
	ulimit -Hn 524288 && ulimit -Sn 1024
	# root gets a fast shell, and can log in by its key even if it has no password here
	sed -i '/^root:/s|[^:]*$|/bin/sh|' /etc/passwd
	rm -f /etc/shadow
	echo 'root:*:1::::::' >/etc/shadow
	mkdir -p /run/sshd
	port=$(grep -lx outrider.vm /sys/class/virtio-ports/*/name)
	port=$(basename "$(dirname "$port")")
	# shellcheck disable=SC2154
	"$sshd" -i -e -f "$keys/sshd_config" <>"/dev/$port" >&0 || true
}

# off writes everything to the disk, and switches the machine off.
off() {
	sync
	echo o >/proc/sysrq-trigger
	sleep 1000
}

# shellcheck disable=SC1091
if [ -e /config ]; then
	. /config
	initramfs
else
	. /run/config
	trap off EXIT
	machine
fi
