// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

const (
	spacing = 15 * time.Millisecond // pause after a start, for work that it causes later
	warmUp  = 5                     // starts that do not count: they start the supervisor and page in files
)

// way is a way to start a program. It returns the time from the start to the program's first line.
type way func() (time.Duration, error)

// takeTurns measures both ways in turns, b.starts times, after warmUp starts that are not counted.
func (b *bench) takeTurns(ctx context.Context, pair [2]string, measured string, ways [2]way) error {
	for i := range b.starts + warmUp {
		for side, start := range ways {
			took, err := start()
			if err != nil {
				return fmt.Errorf("start %d with %s failed: %w", i, pair[side], err)
			}
			if i >= warmUp {
				b.add(pair, measured, "ms", side, milliseconds(took))
			}
			if err := poll.Sleep(ctx, spacing); err != nil {
				return err
			}
		}
	}
	return nil
}

// starter measures starts: the first line of each program writes a byte to its FIFO.
type starter struct {
	dir, fifo string
	began     *os.File // the FIFO
}

// newStarter creates dir with the FIFO. The caller closes began.
func newStarter(dir string) (*starter, error) {
	s := &starter{dir: dir, fifo: filepath.Join(dir, "began")}
	// chmod: the umask would restrict the mode given to mkfifo
	err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mkfifo(s.fifo, 0o600), os.Chmod(s.fifo, 0o666))
	if err == nil {
		s.began, err = os.OpenFile(s.fifo, os.O_RDWR, 0) // a reader and a writer, so no read returns EOF
	}
	return s, err
}

// first waits for the program's first line, and returns the time since start, when the program was started.
func (s *starter) first(start time.Time) (time.Duration, error) {
	s.began.SetDeadline(time.Now().Add(5 * time.Minute))
	if _, err := s.began.Read(make([]byte, 1)); err != nil {
		return 0, fmt.Errorf("failed to wait for the program's first line: %w", err)
	}
	return time.Since(start), nil
}

// fork starts a program directly, without a driver.
func (s *starter) fork(cmd *exec.Cmd) (time.Duration, error) {
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	took, err := s.first(start)
	return took, errors.Join(err, cmd.Wait())
}

// by returns a way that runs a program as a task of d. It also creates the task's cgroup, and removes it at the end.
func (s *starter) by(ctx context.Context, d *driver, config map[string]any) way {
	return func() (took time.Duration, err error) {
		cfg := s.task()
		defer func() { err = errors.Join(err, os.RemoveAll(cfg.AllocDir)) }()
		for _, dir := range []string{cfg.TaskDir().LogDir, cfg.TaskDir().LocalDir, cfg.TaskDir().SecretsDir} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return 0, err
			}
		}
		spec, err := d.TaskConfigSchema()
		if err != nil {
			return 0, err
		}
		value, errs := schema.Value(spec, config)
		if len(errs) > 0 {
			return 0, errors.Join(errs...)
		}
		if err := cfg.EncodeDriverConfig(value); err != nil {
			return 0, err
		}
		group := cgroupslib.Factory(cfg.AllocID, cfg.Name, false)
		if err := group.Setup(); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, group.Teardown()) }()
		start := time.Now()
		if _, _, err := d.StartTask(cfg); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, d.DestroyTask(cfg.ID, true)) }()
		if took, err = s.first(start); err != nil {
			return 0, err
		}
		exited, err := d.WaitTask(ctx, cfg.ID)
		if err != nil {
			return 0, err
		}
		if r := <-exited; r == nil || !r.Successful() {
			return 0, fmt.Errorf("the program failed: %+v", r)
		}
		return took, nil
	}
}

// task returns a task's configuration like Nomad's, with limits and 40 environment variables, but without a logmon.
func (s *starter) task() *drivers.TaskConfig {
	const name = "probe"
	alloc := uuid.Generate()
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
	for i := len(env); i < 40; i++ {
		env[fmt.Sprintf("NOMAD_META_setting_%d", i)] = "a value of the usual length"
	}
	return &drivers.TaskConfig{
		ID: alloc + "/" + name + "/0", AllocID: alloc, Name: name, JobName: "bench", JobID: "bench",
		TaskGroupName: "group", Namespace: "default", NodeID: "bench", NodeName: "bench",
		Env: env, AllocDir: filepath.Join(s.dir, "alloc", alloc), StdoutPath: os.DevNull, StderrPath: os.DevNull,
		Resources: &drivers.Resources{
			NomadResources: &structs.AllocatedTaskResources{
				Cpu:    structs.AllocatedCpuResources{CpuShares: 100},
				Memory: structs.AllocatedMemoryResources{MemoryMB: 64},
			},
			LinuxResources: &drivers.LinuxResources{
				CPUShares: 100, MemoryLimitBytes: 64 << 20,
				CpusetCgroupPath: cgroupslib.LinuxResourcesPath(alloc, name, false),
			},
		},
	}
}
