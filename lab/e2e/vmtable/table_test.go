// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package vmtable_test runs the table of dataset operations in a virtual machine: with OpenZFS instead of zfs-fuse, and
// with cgroup v2 without v1.
package vmtable_test

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/vm"
)

const makePool = `cd /
truncate -s 1G zfs
zpool create -O mountpoint=none tank /zfs
zfs create tank/nomad`

func TestTable_PassesOnOpenZFS(t *testing.T) {
	testsupport.Long(t, "a table of operations on an emulated processor")
	v := vm.New(t, vm.Options{Memory: 3072, ZFS: true, Env: []string{"DATASET_POOLS=zfs=/usr/sbin/zfs=tank/nomad"}})
	shell := func(lines string) {
		t.Helper()
		out, err := v.Output(t.Context(), "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-ec", lines)
		must.NoError(t, err, must.Sprint(out))
	}
	shell(makePool)
	v.Test(t, "github.com/outrider-dev/outrider/plugins/dataset/engine", "-test.run=TestEngine_Operations/./.")
	shell("zpool export tank") // succeeds only if nothing uses the pool
}
