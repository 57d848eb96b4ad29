// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/shoenig/test/must"
)

// rowsOfADay are the rows of the engine's table that run with a seed in OUTRIDER_SAMPLE, by
// its remainder: an emulated processor takes minutes for all. Each is among them one day in three.
var rowsOfADay = []string{
	"Check|Space|Create|Get|List|Mount|Tag|Resize",
	"Rename|Users|Destroy|Rollback",
	"Snapshot|Clone|Send|Receive",
}

// TestEngine_PassesOnOpenZFSAndBtrfs runs the table of the engine's operations on another
// kernel, with OpenZFS instead of zfs-fuse, and with cgroup v2 alone.
func TestEngine_PassesOnOpenZFSAndBtrfs(t *testing.T) {
	rows := "."
	if seed := os.Getenv("OUTRIDER_SAMPLE"); seed != "" {
		n, err := strconv.ParseUint(seed, 10, 32)
		must.NoError(t, err, must.Sprint("OUTRIDER_SAMPLE"))
		rows = "^(" + rowsOfADay[n%uint64(len(rowsOfADay))] + ")"
	}
	h := newHost(t)
	h.o.Env = []string{"DATASET_POOLS=zfs=/usr/sbin/zfs=tank/nomad btrfs=/usr/bin/btrfs=" + poolDir}
	h.makePools()
	h.vm.Test(t, "github.com/outrider-dev/outrider/plugins/dataset/engine", "-test.run=TestBackend_Operations/./"+rows)
	h.shell("zpool export tank; umount " + poolDir) // nothing is left that uses them
}
