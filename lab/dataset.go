// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

const (
	datasetPlugin = agent.DevicePrefix + "dataset"
	datasetLabel  = "dataset" // of the agent: the datasets it was started with
	datasetType   = "dataset" // the type of device that is scratch
)

// dataset selects the file system of the datasets that tasks get.
type dataset string

const (
	datasetAsBefore dataset = ""
	datasetNone     dataset = "none"
	datasetZFSFuse  dataset = "zfs-fuse"
)

// parseDataset reads the value of a flag. An empty one keeps the current choice.
func parseDataset(s string) (dataset, error) {
	switch d := dataset(s); d {
	case datasetAsBefore, datasetNone, datasetZFSFuse:
		return d, nil
	}
	return "", fmt.Errorf("-dataset=%s: want none (no datasets) or zfs-fuse (in a file)", s)
}

// chosen is d, or what the running lab was started with if d is empty. A lab keeps its pool until it is removed:
// volumes are in it.
func (d dataset) chosen(ctx context.Context, dir string) (dataset, error) {
	was := datasetNone
	if a, err := agent.Open(ctx, dir); err == nil {
		was = cmp.Or(dataset(a.Info().Labels[datasetLabel]), datasetNone)
	}
	if d != datasetAsBefore && d != was && was != datasetNone {
		return "", fmt.Errorf("the lab is up, but its datasets are on %s and not on %s; to change that, and lose them:\n\n"+
			"  %s lab:down lab:up -dataset=%s", was, d, mage, d)
	}
	return cmp.Or(d, was), nil
}

// inFile reports whether the lab has a pool of its own.
func (d dataset) inFile() bool { return d == datasetZFSFuse }

// The two faces of the dataset plugin read one file with classes, which is beside the second.
const (
	datasetVolumes = "dataset" // the id of the host volume plugin
	datasetConfig  = `file  = "${host_volume_plugin_dir}/` + datasetVolumes + `.hcl"
sweep = "1s" # scratch is free again soon

api {
  address = "http://127.0.0.1:${http_port}"
}`
	datasetNoClasses = "# no classes: lab:up -dataset=zfs-fuse makes some\n"
)

// datasetClasses are the options of the lab's classes: one for volumes and scratch, and one that is stricter.
var datasetClasses = map[string]string{
	"fast": `
  min_capacity     = "16MiB"
  default_capacity = "64MiB"
  max_capacity     = "512MiB"
  snapshot_reserve = 100
  allow            = ["uid", "gid", "mode", "clone_from"]
  trash_ttl        = "1h"

  slots {
    count    = 4
    capacity = "64MiB"
  }
`,
	"strict": `
  min_capacity     = "16MiB"
  default_capacity = "16MiB"
  max_capacity     = "64MiB"
  namespaces       = ["default"]
  on_delete        = "destroy"
`,
}

// classes returns the operator's file. It makes the file system when it is first needed.
func (l *Lab) classes(ctx context.Context) (string, error) {
	if !l.dataset.inFile() {
		return datasetNoClasses, nil
	}
	pool, made := zfsfuse.Open(l.poolDir())
	if !made {
		var err error
		if pool, err = l.makePool(ctx); err != nil {
			return "", err
		}
	}
	text := fmt.Sprintf("zfs = %q\n", pool.Program)
	for _, name := range slices.Sorted(maps.Keys(datasetClasses)) {
		text += fmt.Sprintf("\nclass %q {\n  root = %q\n%s}\n", name, pool.Root+"/"+name, datasetClasses[name])
	}
	return text, nil
}

// poolDir has the pool's file.
func (l *Lab) poolDir() string { return filepath.Join(l.dir, "pool") }

// makePool makes the file system in the lab's directory. Its daemon carries the agent's mark, so that it ends with the
// agent, which removes the rest.
func (l *Lab) makePool(ctx context.Context) (pool zfsfuse.Pool, err error) {
	dir := l.poolDir()
	end := l.step(ctx, "Making a pool of %s in a file", l.dataset)
	defer func() { end(err, "%s", dir) }()
	if !agent.Privileged() {
		return pool, errors.New("datasets are made and mounted by root: start the lab as root, " +
			"where /sys/fs/cgroup can be written")
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return pool, err
	}
	err = zfsfuse.Remove(dir) // one that was interrupted
	if err == nil {
		pool, err = zfsfuse.Make(ctx, dir, zfsfuse.Options{Size: 2 << 30, Stays: true, Env: []string{agent.Mark(l.dir)},
			Datasets: slices.Sorted(maps.Keys(datasetClasses))})
	}
	if err != nil {
		_ = os.Remove(l.dir) // unless there is something else in it
	}
	return pool, err
}

// createVolume is the command that makes a volume.
func createVolume(file string) string {
	return fmt.Sprintf("lab:shell <<<'nomad volume create %s'", file)
}

// volumes prints the volumes, if there are any.
func (l *Lab) volumes(ctx context.Context, a agent.Agent) error {
	q := (&api.QueryOptions{Namespace: "*"}).WithContext(ctx)
	list, _, err := a.Client().HostVolumes().List(&api.HostVolumeListRequest{}, q)
	if err != nil {
		return fmt.Errorf("failed to list volumes: %w", err)
	}
	if len(list) == 0 {
		return nil
	}
	rows := [][]string{{"VOLUME", "NAMESPACE", "SIZE", "STATE", "USED BY"}}
	for _, v := range list {
		whole, _, err := a.Client().HostVolumes().Get(v.ID, (&api.QueryOptions{Namespace: v.Namespace}).WithContext(ctx))
		if err != nil {
			return fmt.Errorf("failed to read volume %s: %w", v.Name, err)
		}
		var users []string
		for _, alloc := range whole.Allocations {
			users = append(users, alloc.JobID)
		}
		size := fmt.Sprintf("%d MiB", v.CapacityBytes>>20)
		rows = append(rows, []string{v.Name, v.Namespace, size, string(v.State), joined(users)})
	}
	l.say("")
	return term.Table(l.out, rows...)
}
