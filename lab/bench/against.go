// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// measureAgainst compares the start latency of exec-lite and python with that of the same plugins of another build,
// whose binaries are in the directory of -against.
func (b *bench) measureAgainst(ctx context.Context) error {
	for _, p := range []struct {
		binary string
		task   func(s *starter) (program, error)
		config map[string]any
	}{
		{b.liteBinary, (*starter).probeTask, nil},
		{b.pythonBinary, (*starter).scriptTask, map[string]any{"offline": true}},
	} {
		name := filepath.Base(p.binary)
		err := b.step(func() error {
			r, err := b.timeBoth(ctx, p.binary, filepath.Join(b.against, name), p.task, p.config)
			if err != nil {
				return err
			}
			this, other := median(r.first[thisBuild]), median(r.first[otherBuild])
			b.note("%s, StartTask to first instruction, median of %d: %s with this build, %s with that of %s: %+.1f %%.",
				name, b.starts, ms(this), ms(other), b.against, 100*(float64(this)/float64(other)-1))
			return nil
		}, "%d starts of %s, and of that in %s", b.starts, name, b.against)
		if err != nil {
			return err
		}
	}
	return nil
}

const thisBuild, otherBuild = "this", "other"

func (b *bench) timeBoth(
	ctx context.Context, this, other string, task func(*starter) (program, error), config map[string]any,
) (_ *starts, err error) {
	dir, err := os.MkdirTemp("", "orag-") // short: unix sockets are below it
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, supervisorGone(ctx, dir), os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // tasks are other users
		return nil, err
	}
	s, err := newStarter(filepath.Join(dir, "tasks"))
	if err != nil {
		return nil, err
	}
	defer s.times.Close()
	timed, err := task(s)
	if err != nil {
		return nil, err
	}
	var ways []way
	for i, binary := range []string{this, other} {
		c := map[string]any{"state_dir": filepath.Join(dir, fmt.Sprint("state", i))}
		for name, value := range config {
			c[name] = value
		}
		if config != nil { // two instances of python share neither
			c["cache_dir"], c["build_user"] = filepath.Join(dir, fmt.Sprint("cache", i)), fmt.Sprint(buildUser-i)
		}
		d, err := openPlugin(ctx, binary, c)
		if err != nil {
			return nil, err
		}
		defer d.close()
		ways = append(ways, way{[]string{thisBuild, otherBuild}[i], s.by(ctx, d, timed)})
	}
	return takeTurns(ctx, b.starts, ways)
}

// probeTask is the program of the part start.
func (s *starter) probeTask() (program, error) {
	path := filepath.Join(s.dir, "probe")
	return program{config: map[string]any{"command": path, "args": []string{s.fifo}}}, writeProbe(path)
}

// scriptTask is the program of the part python.
func (s *starter) scriptTask() (program, error) {
	path := filepath.Join(s.dir, "script.py")
	config := map[string]any{"script": path, "python": interpreted, "args": []string{s.fifo}}
	return program{config: config}, os.WriteFile(path, []byte(script), 0o644)
}
