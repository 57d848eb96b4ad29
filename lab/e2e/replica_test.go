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
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// count appends consecutive numbers to a file in its volume, and continues after the last one.
const count = `n=$(tail -n 1 /data/log 2>/dev/null || echo 0)
while :; do
  n=$((n+1))
  echo $n >> /data/log
  sleep 0.05
done
`

// TestReplica_TakesOverFromALostNode runs the page's commands on two nodes, one of which is lost. Both are this
// machine, with different roots of the class.
func TestReplica_TakesOverFromALostNode(t *testing.T) {
	testsupport.Long(t, "waits until Nomad reports a node as lost")
	t.Parallel()
	root := func(classes string) string {
		_, root, _ := strings.Cut(classes, `root = "`)
		root, _, _ = strings.Cut(root, `"`)
		return root
	}
	here, there := pool(t, "fast"), pool(t, "fast")
	other := newNode(t, nodeOptions{classes: there, config: "server {\n  heartbeat_grace = \"30s\"\n}\n"})
	lost := newNode(t, nodeOptions{classes: here, of: other})
	volumes := other.Client().HostVolumes()
	made, err := other.createVolume(&api.HostVolume{Name: "notes", NodeID: lost.id(),
		Parameters: map[string]string{"class": "fast", "mode": "0777"}})
	must.NoError(t, err)
	other.ready(t, made.ID)
	a := other.submit(t, job(t, sh(count), asService, func(j *api.Job, task *api.Task) {
		withVolume("notes", "/data")(j, task)
		j.TaskGroups[0].Volumes["notes"].AccessMode = "single-node-writer"
		j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Unlimited: new(true), Delay: new(5 * time.Second),
			DelayFunction: new("constant")} // a service job reschedules by default
	}))
	a.running(t)
	log := func(id string) (lines []string) {
		v, _, err := volumes.Get(id, nil)
		must.NoError(t, err)
		text, err := os.ReadFile(filepath.Join(v.HostPath, "log"))
		must.NoError(t, err)
		return strings.Fields(string(text))
	}
	testsupport.Eventually(t, "the job writes", func() bool { return len(log(made.ID)) > 20 })

	dir := mkdir(t)
	for name, text := range map[string]string{
		"sudo":  `exec "$@"`,
		"ssh":   "shift\nexec \"$@\"",
		"zfs":   "exec " + zfsFuse.Program + ` "$@"`,
		"nomad": "exec " + nomadBinary + ` "$@"`,
		"nomad-device-dataset": fmt.Sprintf(`exec %s/%sdataset "$@" -file %s/dataset.hcl`, other.PluginDir(),
			agent.DevicePrefix, other.HostVolumePluginDir()),
	} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	typed := func(marker string) {
		t.Helper()
		var found []fence
		for _, f := range readFences(t, datasetPage) {
			if f.lang == "sh" && strings.Contains(f.text, marker) {
				found = append(found, f)
			}
		}
		must.Len(t, 1, found, must.Sprint(marker))
		text := strings.NewReplacer("tank/fast/notes", root(there)+"/notes", "tank/fast/default", root(here)+"/default").
			Replace(found[0].text)
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", text)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "NOMAD_ADDR="+other.Address())
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s\n%s", text, out))
	}
	typed("zfs send")
	sent := len(log(made.ID))
	must.NoError(t, lost.Kill(t.Context()))
	typed("nomad-device-dataset adopt")

	// the job continues on the other node, after the sent data
	var id string
	testsupport.Within(t, 2*time.Minute, func() error {
		all, _, err := volumes.List(&api.HostVolumeListRequest{NodeID: other.id()}, nil)
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("the other node has %d volumes", len(all))
		}
		if err == nil {
			id = all[0].ID
		}
		return err
	})
	t.Cleanup(func() {
		testsupport.Within(t, time.Minute, func() error {
			_, _, err := volumes.Delete(&api.HostVolumeDeleteRequest{ID: id}, nil)
			return err
		})
	})
	testsupport.Within(t, 3*time.Minute, func() error {
		if lines := len(log(id)); lines < sent+20 {
			return fmt.Errorf("the job has written %d lines", lines)
		}
		return nil
	})
	for i, n := range log(id) {
		must.Eq(t, strconv.Itoa(i+1), n)
	}

	lost.restart(t) // after that, its volume can be deleted
	testsupport.Within(t, 2*time.Minute, func() error {
		_, _, err := volumes.Delete(&api.HostVolumeDeleteRequest{ID: made.ID}, nil)
		return err
	})
	_, _, err = other.Client().Jobs().Deregister(a.job, true, nil)
	must.NoError(t, err)
}
