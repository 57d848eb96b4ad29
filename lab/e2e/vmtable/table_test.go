// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package vmtable_test runs the table of what file systems do for datasets on another kernel,
// in a virtual machine: with OpenZFS instead of zfs-fuse, and with cgroup v2 alone.
package vmtable_test

import (
	"os/exec"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/vm"
)

const makePools = `cd /
truncate -s 1G zfs btrfs
zpool create -O mountpoint=none tank /zfs
zfs create tank/nomad
mkfs.btrfs -q btrfs
mkdir /srv/pool
mount -o loop btrfs /srv/pool
btrfs quota enable /srv/pool`

func TestTable_PassesOnOpenZFSAndBtrfs(t *testing.T) {
	testsupport.Long(t, "a table of operations on an emulated processor")
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		t.Skip("no mkfs.btrfs (package btrfs-progs)") // which the VM has from here
	}
	v := vm.New(t, vm.Options{Memory: 3072, ZFS: true,
		Env: []string{"DATASET_POOLS=zfs=/usr/sbin/zfs=tank/nomad btrfs=/usr/bin/btrfs=/srv/pool"}})
	shell := func(lines string) {
		t.Helper()
		out, err := v.Output(t.Context(), "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-ec", lines)
		must.NoError(t, err, must.Sprint(out))
	}
	shell(makePools)
	v.Test(t, "github.com/outrider-dev/outrider/plugins/dataset/engine", "-test.run=TestBackend_.*Operations/./.")
	shell("zpool export tank; umount /srv/pool") // nothing is left that uses them
}
