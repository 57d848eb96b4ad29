// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
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
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// ready waits until the volume is ready, and returns it.
func (n *node) ready(t testing.TB, id string) *api.HostVolume {
	t.Helper()
	var vol *api.HostVolume
	testsupport.Within(t, time.Minute, func() error {
		var err error
		if vol, _, err = n.Client().HostVolumes().Get(id, nil); err != nil {
			return err
		}
		if vol.State != api.HostVolumeStateReady {
			return fmt.Errorf("the volume is %s", vol.State)
		}
		return nil
	})
	return vol
}

// rootOf returns the root dataset of the first class.
func rootOf(classes string) string {
	_, root, _ := strings.Cut(classes, `root = "`)
	root, _, _ = strings.Cut(root, `"`)
	return root
}

// Volumes survive a kill of the agent, a replaced plugin and the operator's mistakes.
func TestVolumes_OutliveTheirAgentAndPlugin(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	classes := strings.ReplaceAll(pool(t, "fast"), class, `
  max_capacity     = "256MiB"
  default_capacity = "64MiB"
  allow            = ["uid"]
`)
	n := newNode(t, nodeOptions{classes: classes})
	file := filepath.Join(n.HostVolumePluginDir(), "dataset.hcl")

	fast := func(name string) *api.HostVolume {
		return &api.HostVolume{Name: name, Parameters: map[string]string{"class": "fast", "uid": "1234"}}
	}
	vol, err := nomadtest.CreateVolume(n.Client(), fast("data"))
	must.NoError(t, err)
	must.Eq(t, 64*mib, vol.CapacityBytes)
	path := n.ready(t, vol.ID).HostPath
	must.Eq(t, filepath.Join(n.DataDir(), "host_volumes", vol.ID), path)
	write := func(text string) { must.NoError(t, os.WriteFile(filepath.Join(path, "a"), []byte(text), 0o644)) }
	read := func() string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(path, "a"))
		must.NoError(t, err)
		return string(text)
	}
	write("first")

	// the agent is killed, and has the volume after its restart
	kill(t, n)
	n.restart(t)
	nomadtest.HasVolumes(t, n.Client(), "data")
	must.Eq(t, path, n.ready(t, vol.ID).HostPath)
	must.Eq(t, "first", read())

	// the plugin's binary is replaced, and the operator makes a mistake in the configuration
	write("second")
	installed := filepath.Join(n.PluginDir(), filepath.Base(dataset))
	must.NoError(t, os.Remove(installed))
	must.NoError(t, share(dataset, installed))
	must.NoError(t, os.WriteFile(file, []byte(classes+`class "slow" { root = "/srv" }`), 0o644))
	stop(t, n)
	n.restart(t)
	nomadtest.HasVolumes(t, n.Client(), "data")
	must.Eq(t, "second", read())
	_, err = nomadtest.CreateVolume(n.Client(), fast("other")) // Nomad shows the operator's mistake to the submitter
	must.ErrorContains(t, err, `class "slow": root "/srv" is not the name of a dataset`)

	// the mistake is corrected, and the capacity changes
	larger := fast("data")
	larger.ID, larger.NodeID, larger.RequestedCapacityMaxBytes = vol.ID, vol.NodeID, 128*mib
	must.NoError(t, os.WriteFile(file, []byte(classes), 0o644))
	vol, err = nomadtest.CreateVolume(n.Client(), larger)
	must.NoError(t, err)
	must.Eq(t, 128*mib, vol.CapacityBytes)
	must.Eq(t, "second", read())
	n.deleteVolume(t, vol.ID)
}

// count is a script that appends consecutive numbers to a file in its volume. It continues after the last number there.
const count = `n=$(tail -n 1 /data/log 2>/dev/null || echo 0)
while :; do
  n=$((n+1))
  echo $n >> /data/log
  sleep 0.05
done
`

// programs makes a directory with programs that an operator uses on this node, and with the scripts in more.
func (n *node) programs(t *testing.T, more map[string]string) (dir string) {
	t.Helper()
	dir = mkdir(t)
	scripts := map[string]string{
		"zfs":   "exec " + zfsFuse.Program + ` "$@"`,
		"nomad": "exec " + nomadBinary + ` "$@"`,
		"nomad-device-dataset": fmt.Sprintf(`exec %s/%sdataset "$@" -file %s/dataset.hcl`, n.PluginDir(),
			agent.DevicePrefix, n.HostVolumePluginDir()),
	}
	maps.Copy(scripts, more)
	for name, text := range scripts {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	return dir
}

// withoutVolumes stops these jobs, and deletes all volumes.
func (n *node) withoutVolumes(t *testing.T, jobs ...string) {
	t.Helper()
	for _, job := range jobs {
		_, _, err := n.Client().Jobs().Deregister(job, true, nil)
		test.NoError(t, err)
	}
	testsupport.Within(t, 2*time.Minute, func() error {
		all, _, err := n.Client().HostVolumes().List(&api.HostVolumeListRequest{}, nil)
		for _, v := range all {
			_, _, failed := n.Client().HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: v.ID}, nil)
			err = errors.Join(err, failed) // a deletion fails while the volume is in use or has clones
		}
		return err
	})
}

// TestReplica_TakesOverFromALostNode runs commands of datasetPage on two nodes, one of which is lost. Both run on this
// machine, so the class has a different root on each.
func TestReplica_TakesOverFromALostNode(t *testing.T) {
	testsupport.Long(t, "waits until Nomad reports a node as lost")
	t.Parallel()
	here, there := pool(t, "fast"), pool(t, "fast")
	other := newNode(t, nodeOptions{classes: there, config: "server {\n  heartbeat_grace = \"30s\"\n}\n"})
	lost := newNode(t, nodeOptions{classes: here, of: other})
	volumes := other.Client().HostVolumes()
	made, err := nomadtest.CreateVolume(other.Client(), &api.HostVolume{Name: "notes", NodeID: lost.id(),
		Parameters: map[string]string{"class": "fast", "mode": "0777"}})
	must.NoError(t, err)
	other.ready(t, made.ID)
	a := other.submit(t, job(t, sh(count), asService, func(j *api.Job, task *api.Task) {
		nomadtest.WithVolume("notes", "/data")(j, task)
		j.TaskGroups[0].Volumes["notes"].AccessMode = "single-node-writer"
		j.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Unlimited: new(true), Delay: new(5 * time.Second),
			DelayFunction: new("constant")} // as by default for a service; nomadtest.Job turns it off
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

	dir := other.programs(t, map[string]string{"sudo": `exec "$@"`, "ssh": "shift\nexec \"$@\""})
	typed := func(marker string) {
		t.Helper()
		var found []fence
		for _, f := range readFences(t, datasetPage) {
			if f.lang == "sh" && strings.Contains(f.text, marker) {
				found = append(found, f)
			}
		}
		must.Len(t, 1, found, must.Sprint(marker))
		text := strings.NewReplacer("tank/fast/notes", rootOf(there)+"/notes", "tank/fast/default", rootOf(here)+"/default").
			Replace(found[0].text)
		env := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "NOMAD_ADDR="+other.Address())
		out, err := shell(t, dir, env, text)
		must.NoError(t, err, must.Sprintf("%s\n%s", text, out))
	}
	typed("zfs send")
	sent := len(log(made.ID))
	must.NoError(t, lost.Kill(t.Context()))
	typed("nomad-device-dataset adopt")

	// the job continues on the other node, with the number after the last one sent
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
	t.Cleanup(func() { other.withoutVolumes(t, a.job) })
	testsupport.Within(t, 3*time.Minute, func() error {
		if lines := len(log(id)); lines < sent+20 {
			return fmt.Errorf("the job has written %d lines", lines)
		}
		return nil
	})
	for i, n := range log(id) {
		must.Eq(t, strconv.Itoa(i+1), n)
	}

	lost.restart(t) // so that the cleanup can delete the volume on this node
}
