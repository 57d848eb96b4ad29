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

//go:embed classes.hcl
var classesText string

var classesTemplate = template.Must(template.New("classes.hcl").Parse(classesText))

// classes returns the file with the lab's classes. It makes the file system when it is first needed.
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

// poolDir has the pool's file.
func (l *Lab) poolDir() string { return filepath.Join(l.dir, agent.PoolDir) }

// makePool makes the file system in the lab's directory. Its daemon carries the agent's mark, so that it ends with the
// agent, which removes the rest.
func (l *Lab) makePool(ctx context.Context) (pool zfsfuse.Pool, err error) {
	dir := l.poolDir()
	end := l.step(ctx, "Making a pool of zfs-fuse in a file")
	defer func() { end(err, "%s", dir) }()
	if os.Geteuid() != 0 {
		return pool, errors.New("datasets are made and mounted by root: start the lab as root")
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return pool, err
	}
	err = zfsfuse.Remove(dir) // one that was interrupted
	if err == nil {
		pool, err = zfsfuse.Make(ctx, dir, zfsfuse.Options{Size: 2 << 30, Stays: true, Env: []string{agent.Mark(l.dir)},
			Datasets: []string{"fast", "strict"}})
	}
	if err != nil {
		_ = os.Remove(l.dir) // unless there is something else in it
	}
	return pool, err
}
