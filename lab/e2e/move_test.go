// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// count writes a number after the other to its volume, and goes on where it was. It is stopped only
// after the last one is whole.
const count = `trap 'end=1' TERM INT
n=$(tail -n 1 /data/log 2>/dev/null || echo 0)
while [ -z "$end" ]; do
  n=$((n+1))
  echo $n >> /data/log
  sleep 0.05
done
`

// TestMove_TakesVolumeAndJobToAnotherNode has two agents of one cluster, each with a pool, and a job
// that writes all the time.
func TestMove_TakesVolumeAndJobToAnotherNode(t *testing.T) {
	testsupport.Long(t, "starts a second agent")
	t.Parallel()
	first := newNode(t, nodeOptions{classes: pool(t, "btrfs", "fast")})
	second := newNode(t, nodeOptions{classes: pool(t, "btrfs", "fast"), of: first})
	id := first.volume(t, "data")
	a := first.submit(t, job(t, sh(count), asService, withVolume("data", "/data"), func(j *api.Job, _ *api.Task) {
		j.TaskGroups[0].Volumes["data"].Sticky = true // Nomad forgets the claim with the volume
	}))
	a.running(t)
	volumes := first.Client().HostVolumes()
	log := func(id string) (lines []string) {
		v, _, err := volumes.Get(id, nil)
		must.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(v.HostPath, "log"))
		must.NoError(t, err)
		return strings.Fields(string(text))
	}
	testsupport.Eventually(t, "the job writes", func() bool { return len(log(id)) > 20 })

	shell := filepath.Join(mkdir(t), "shell") // what ssh would do on the other host
	text := fmt.Sprintf("#!/bin/sh\nshift\neval \"exec $* -file %s/dataset.hcl\"\n", second.HostVolumePluginDir())
	must.NoError(t, os.WriteFile(shell, []byte(text), 0o755))
	plugin := func(n *node) string { return filepath.Join(n.PluginDir(), agent.DevicePrefix+"dataset") }
	move := func(more ...string) (string, error) {
		cmd := exec.Command(plugin(first), append([]string{"move", "data", second.id(), "-e", shell, "-program",
			plugin(second),
			"-file", first.HostVolumePluginDir() + "/dataset.hcl", "-address", first.Address()}, more...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := move()
	must.Error(t, err, must.Sprint(out))
	must.StrContains(t, out, "is used by allocation "+a.id[:8]+" of job "+a.job)

	started := time.Now()
	out, err = move("-live")
	must.NoError(t, err, must.Sprint(out))
	t.Logf("%s%.1f s in all", out, time.Since(started).Seconds())
	_, _, err = volumes.Get(id, nil)
	must.ErrorContains(t, err, "404")
	all, _, err := volumes.List(nil, nil)
	must.NoError(t, err)
	must.SliceLen(t, 1, all)
	must.Eq(t, second.id(), all[0].NodeID)
	t.Cleanup(func() {
		testsupport.Within(t, time.Minute, func() error {
			_, _, err := volumes.Delete(&api.HostVolumeDeleteRequest{ID: all[0].ID}, nil)
			return err
		})
	})

	// the job runs on, there, and has every number once
	before := len(log(all[0].ID))
	testsupport.Eventually(t, "the job writes on the other node", func() bool { return len(log(all[0].ID)) > before+20 })
	for i, n := range log(all[0].ID) {
		must.Eq(t, strconv.Itoa(i+1), n)
	}
	allocations, _, err := first.Client().Jobs().Allocations(a.job, false, nil)
	must.NoError(t, err)
	for _, a := range allocations {
		if a.ClientStatus == api.AllocClientStatusRunning {
			test.Eq(t, second.id(), a.NodeID)
		}
	}
	_, _, err = first.Client().Jobs().Deregister(a.job, true, nil)
	must.NoError(t, err)
}
