// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
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

// knows waits until the agent has reported exactly these volumes.
func (n *node) knows(t testing.TB, names ...string) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		info, _, err := n.Client().Nodes().Info(n.id(), nil)
		if err != nil {
			return err
		}
		for _, name := range names {
			if _, there := info.HostVolumes[name]; !there {
				return fmt.Errorf("the node has no volume %s", name)
			}
		}
		if len(info.HostVolumes) != len(names) {
			return fmt.Errorf("the node has %d volumes, want %d", len(info.HostVolumes), len(names))
		}
		return nil
	})
}

// createVolume makes or changes a volume through Nomad. Without capabilities in v it has a single writer.
func (n *node) createVolume(v *api.HostVolume) (*api.HostVolume, error) {
	v.PluginID, v.Namespace = "dataset", "default"
	if v.RequestedCapabilities == nil {
		v.RequestedCapabilities = []*api.HostVolumeCapability{{
			AttachmentMode: api.HostVolumeAttachmentModeFilesystem, AccessMode: api.HostVolumeAccessModeSingleNodeWriter}}
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		got, _, err := n.Client().HostVolumes().Create(&api.HostVolumeCreateRequest{Volume: v}, nil)
		switch {
		case err == nil:
			return got.Volume, nil
		case !strings.Contains(err.Error(), "No path to node") || time.Now().After(end): // just after the agent's start
			return nil, err
		}
	}
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
	_, root, _ := strings.Cut(classes, `root = "`)
	root, _, _ = strings.Cut(root, `"`)
	n := newNode(t, nodeOptions{classes: classes})
	file := filepath.Join(n.HostVolumePluginDir(), "dataset.hcl")
	again := func() { t.Helper(); stop(t, n); n.restart(t) }

	fast := func(name string) *api.HostVolume {
		return &api.HostVolume{Name: name, Parameters: map[string]string{"class": "fast", "uid": "1234"}}
	}
	vol, err := n.createVolume(fast("data"))
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
	n.knows(t, "data")
	must.Eq(t, path, n.ready(t, vol.ID).HostPath)
	must.Eq(t, "first", read())

	// the plugin's binary is replaced, and the operator makes a mistake in the configuration
	write("second")
	must.NoError(t, n.ReplacePlugin(t.Context(), dataset))
	must.NoError(t, os.WriteFile(file, []byte(classes+`class "slow" { root = "/srv" }`), 0o644))
	again()
	n.knows(t, "data")
	must.Eq(t, "second", read())
	_, err = n.createVolume(fast("other")) // the submitter sees the operator's mistake
	must.ErrorContains(t, err, `class "slow": root "/srv" is not the name of a dataset`)

	// the mistake is corrected, and the capacity changes
	larger := fast("data")
	larger.ID, larger.NodeID, larger.RequestedCapacityMaxBytes = vol.ID, vol.NodeID, 128*mib
	must.NoError(t, os.WriteFile(file, []byte(classes), 0o644))
	vol, err = n.createVolume(larger)
	must.NoError(t, err)
	must.Eq(t, 128*mib, vol.CapacityBytes)
	must.Eq(t, "second", read())

	// the class was missing at the agent's start: the volume is back after another create, or another start
	for _, back := range []func(){
		func() {
			_, err := n.createVolume(larger)
			must.NoError(t, err)
		},
		again,
	} {
		zfs(t, "rename", root, root+"-away")
		again()
		n.knows(t)
		zfs(t, "rename", root+"-away", root)
		back()
		n.knows(t, "data")
		must.Eq(t, "second", read())
	}

	// a deleted volume is in the trash
	_, _, err = n.Client().HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: vol.ID}, nil)
	must.NoError(t, err)
	must.False(t, testsupport.Exists(path))
	must.StrContains(t, zfs(t, "list", "-H", "-r", "-o", "name", root), "\n"+root+"/.trash/"+vol.ID+".")
	again()
	n.knows(t)
	records, err := filepath.Glob(filepath.Join(n.DataDir(), "host_volumes", ".outrider", "*"))
	must.NoError(t, err)
	must.SliceEmpty(t, records)
}
