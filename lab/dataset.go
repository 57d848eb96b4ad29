// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/lab/agent"
)

const datasetPlugin = agent.DevicePrefix + "dataset"

// dataset is a device plugin and a host volume plugin. Both read the class file next to the host volume plugin.
const (
	datasetVolumes = "dataset" // the id of the host volume plugin
	datasetConfig  = `file  = "${host_volume_plugin_dir}/` + datasetVolumes + `.hcl"
sweep = "1s" # reclaim scratch datasets quickly

api {
  address = "http://127.0.0.1:${http_port}"
}`
	datasetNoClasses = "# no classes: lab:up -dataset=zfs-fuse creates some\n"
)

//go:embed classes.hcl
var classesText string

var classesTemplate = template.Must(template.New("classes.hcl").Parse(classesText))

// classes returns the content of the lab's class file. It creates the pool if the lab has none.
func (l *Lab) classes(ctx context.Context) (string, error) {
	pool, made := zfsfuse.Open(l.poolDir())
	if !made {
		var err error
		if pool, err = l.makePool(ctx); err != nil {
			return "", err
		}
	}
	var text strings.Builder
	err := classesTemplate.Execute(&text, pool)
	return text.String(), err
}

func (l *Lab) poolDir() string { return filepath.Join(l.dir, agent.PoolDir) }

// makePool creates a zfs-fuse pool in the lab's directory. Its daemon has the agent's mark in its environment: removing
// the agent ends the daemon too, and removes the files of the pool.
func (l *Lab) makePool(ctx context.Context) (pool zfsfuse.Pool, err error) {
	dir := l.poolDir()
	end := l.step(ctx, "Creating a zfs-fuse pool in a file")
	defer func() { end(err, "%s", dir) }()
	if os.Geteuid() != 0 {
		return pool, errors.New("only root can create and mount datasets: start the lab as root")
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return pool, err
	}
	err = zfsfuse.Remove(dir) // an interrupted run may have left files
	if err == nil {
		pool, err = zfsfuse.Make(ctx, dir, zfsfuse.Options{Size: 2 << 30, Stays: true, Env: []string{agent.Mark(l.dir)},
			Datasets: []string{"fast", "strict"}})
	}
	if err != nil {
		_ = os.Remove(l.dir) // fails unless the directory is empty
	}
	return pool, err
}
