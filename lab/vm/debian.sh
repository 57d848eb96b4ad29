#!/bin/sh
# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Creates files for the VM from Debian's packages, in an empty directory:
#
#   kernel DIR [PACKAGE.deb]   DIR/made has a kernel: the package's, otherwise the newest
#   zfs DIR RELEASE            DIR/made has OpenZFS for the kernel: modules, sbin, lib
#
# The script installs nothing.
set -eu
PATH=$PATH:/usr/sbin:/sbin

need() { # PROGRAM PACKAGE
	command -v "$1" >/dev/null || { echo "$1 is missing (apt-get install $2)"; exit 1; }
}

# depends prints the package's dependencies whose names match the pattern.
depends() { # PACKAGE PATTERN
	apt-cache depends "$1" | sed -n "s/^ *Depends: \($2\)\$/\1/p"
}

kernel() {
	need apt-get apt && need dpkg-deb dpkg && need depmod kmod
	package=${1:-}
	if [ -z "$package" ]; then
		name=$(depends linux-image-amd64 'linux-image-.*' | head -n 1)
		[ -n "$name" ] || { echo "apt has no package linux-image-amd64 (apt-get update?)"; exit 1; }
		apt-get download "$name"
		package=$(echo ./*.deb)
	fi
	dpkg-deb -x "$package" made
	[ -e made/lib ] || ln -s usr/lib made/lib # merged /usr
	depmod -b made "$(basename made/lib/modules/*)"
}

zfs() {
	need apt-get apt && need gcc gcc && need make make && need strip binutils
	release=$1
	headers=$PWD/usr/src/linux-headers-$release
	# shellcheck disable=SC2046 # the words are package names
	apt-get download "linux-headers-$release" $(depends "linux-headers-$release" 'linux-\(headers\|kbuild\)-.*') || {
		echo "apt has no headers for kernel $release: if a newer kernel exists, remove the old one from the cache"
		exit 1
	}

	# the component contrib, from the archives of this machine's Debian
	# shellcheck disable=SC2016 # apt replaces the variables
	apt-get indextargets --format \
		'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) contrib' \
		'Created-By: Packages' 'Component: main' 'Origin: Debian' >sources.list
	[ -s sources.list ] || { echo "apt has no Debian archive with OpenZFS (apt-get update?)"; exit 1; }
	mkdir -p lists/partial cache/archives/partial
	cat >apt.conf <<-END
		Dir::Etc::SourceList "$PWD/sources.list";
		Dir::Etc::SourceParts "/dev/null";
		Dir::State::Lists "$PWD/lists";
		Dir::Cache "$PWD/cache";
		APT::Sandbox::User "root";
		Acquire::Languages "none";
	END
	export APT_CONFIG="$PWD/apt.conf"
	apt-get update
	# shellcheck disable=SC2046
	apt-get download zfs-dkms zfsutils-linux $(depends zfsutils-linux 'lib.*linux')
	for package in ./*.deb; do
		dpkg-deb -x "$package" .
	done

	# the Makefile names the other package's directory as if both packages were installed
	sed -i "s| /usr/src/| $PWD/usr/src/|g" "$headers/Makefile"
	common=$(echo "$PWD"/usr/src/linux-headers-*-common)
	(
		cd usr/src/zfs-*
		./configure --with-config=kernel --with-linux="$common" --with-linux-obj="$headers"
		make -j"$(nproc)"
	)

	mkdir -p made/modules made/sbin made/lib
	find usr/src/zfs-*/module -name '*.ko' -exec mv {} made/modules ';'
	strip --strip-debug made/modules/*.ko
	find . -path ./made -prune -o -path '*/sbin/z*' '(' -name zfs -o -name zpool ')' -exec mv {} made/sbin ';'
	find . -path ./made -prune -o -path '*/x86_64-linux-gnu/lib*.so.*' -exec mv {} made/lib ';'
	[ -e made/modules/zfs.ko ] && [ -e made/sbin/zfs ] && [ -e made/sbin/zpool ]
}

make=$1
cd "$2"
shift 2
"$make" "$@"
