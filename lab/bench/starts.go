// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/nomad/client/lib/cgroupslib"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// starts are the start latencies of each way to start a program.
type starts struct {
	first map[string]series // from the call of StartTask until the program's first instruction
	call  map[string]series // until StartTask's return
}

const (
	floor   = "fork+exec"           // without a driver
	spacing = 15 * time.Millisecond // one start may leave work behind that would delay the next
	warmUp  = 5                     // the first starts the supervisor and pages in binaries
)

func (b *bench) measureStarts(ctx context.Context) error {
	return b.step(func() error {
		r, err := b.timeStarts(ctx, filepath.Join(b.dir, "start"))
		if err != nil {
			return err
		}
		for _, driver := range both {
			for i, took := range r.first[driver] {
				b.add(driver, float64(took), quantity{"StartTask to first instruction, median", millis, 6, nil},
					quantity{"– 99th percentile", millis, 0, percentile99})
				b.add(driver, float64(r.call[driver][i]), quantity{"– StartTask itself, median", millis, 0, nil})
			}
		}
		b.note("The floor, a bare fork and exec of the same program: median %s, 99th percentile %s; %d starts each.",
			ms(median(r.first[floor])), ms(percentile(r.first[floor], 99)), b.starts)
		return nil
	}, "%d starts of each driver, one after the other", b.starts)
}

func (b *bench) timeStarts(ctx context.Context, dir string) (_ *starts, err error) {
	s, err := newStarter(dir)
	if err != nil {
		return nil, err
	}
	defer s.times.Close()
	timed, err := s.probeTask()
	if err != nil {
		return nil, err
	}
	probe := filepath.Join(dir, "probe")

	liteDriver, err := openPlugin(ctx, b.liteBinary, map[string]any{"state_dir": filepath.Join(dir, "state")})
	if err != nil {
		return nil, err
	}
	defer func() {
		liteDriver.close()
		err = errors.Join(err, supervisorGone(ctx, dir))
	}()
	rawDriver, err := openRaw(ctx)
	if err != nil {
		return nil, err
	}
	defer rawDriver.close()

	return takeTurns(ctx, b.starts, []way{
		{lite, s.by(ctx, liteDriver, timed)},
		{raw, s.by(ctx, rawDriver, timed)},
		{floor, func() (first, call time.Duration, err error) { return s.fork(exec.Command(probe, s.fifo)) }},
	})
}

// way is one of the ways to start the same program.
type way struct {
	name  string
	start func() (first, call time.Duration, err error)
}

// takeTurns starts the program in each way, so many times, after a few starts that are not counted.
func takeTurns(ctx context.Context, times int, ways []way) (*starts, error) {
	r := &starts{first: map[string]series{}, call: map[string]series{}}
	for i := range times + warmUp {
		for _, w := range ways {
			first, call, err := w.start()
			if err != nil {
				return nil, fmt.Errorf("start %d by %s: %w", i, w.name, err)
			}
			if i >= warmUp {
				r.first[w.name] = append(r.first[w.name], first)
				r.call[w.name] = append(r.call[w.name], call)
			}
			if err := poll.Sleep(ctx, spacing); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// starter starts programs that write the time of their first instruction to a FIFO.
type starter struct {
	dir, fifo string
	times     *os.File // the FIFO
	n         int
}

// newStarter makes dir. The caller closes times.
func newStarter(dir string) (*starter, error) {
	s := &starter{dir: dir, fifo: filepath.Join(dir, "time")}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mkfifo(s.fifo, 0o600); err != nil {
		return nil, err
	}
	if err := os.Chmod(s.fifo, 0o666); err != nil { // independent of the umask
		return nil, err
	}
	var err error
	s.times, err = os.OpenFile(s.fifo, os.O_RDWR, 0) // never at its end
	return s, err
}

// program is what a task runs.
type program struct {
	config map[string]any
	user   string // empty is the driver's default
}

// by starts a program as one task of a driver.
func (s *starter) by(ctx context.Context, d *driver, p program) func() (first, call time.Duration, err error) {
	return func() (first, call time.Duration, err error) { return s.start(ctx, d, p, 1) }
}

// start runs n tasks at once, from the creation of their cgroups to their destruction. It returns
// the times until the last first instruction and the last return of StartTask.
func (s *starter) start(ctx context.Context, d *driver, p program, n int) (first, call time.Duration, err error) {
	var tasks []*preparedTask
	for range n {
		t, failed := s.prepare(d, p)
		defer func() { err = errors.Join(err, t.remove()) }()
		if failed != nil {
			return 0, 0, failed
		}
		tasks = append(tasks, t)
	}
	begin := monotonic()
	errs := make(chan error)
	for _, t := range tasks {
		go func() {
			_, _, err := d.StartTask(t.cfg)
			errs <- err
		}()
	}
	for _, t := range tasks {
		err = errors.Join(err, <-errs)
		call = monotonic() - begin
		defer func() { err = errors.Join(err, d.DestroyTask(t.cfg.ID, true)) }()
	}
	if err != nil {
		return 0, 0, err
	}
	for range tasks {
		at, err := s.told()
		if err != nil {
			return 0, 0, err
		}
		first = max(first, at-begin)
	}
	for _, t := range tasks {
		exited, err := d.WaitTask(ctx, t.cfg.ID)
		if err != nil {
			return 0, 0, err
		}
		if r := <-exited; r == nil || !r.Successful() {
			return 0, 0, fmt.Errorf("the program failed: %+v", r)
		}
	}
	return first, call, nil
}

// preparedTask is a task with what Nomad's client makes before it starts one.
type preparedTask struct {
	cfg   *drivers.TaskConfig
	group cgroupslib.Lifecycle // nil: none
	fifos []*os.File           // in place of logmon's
}

// prepare makes a task. The caller removes it, after an error too.
func (s *starter) prepare(d *driver, p program) (*preparedTask, error) {
	s.n++
	cfg := s.task()
	cfg.User = p.user
	t := &preparedTask{cfg: cfg}
	for _, dir := range []string{cfg.TaskDir().LogDir, cfg.TaskDir().LocalDir, cfg.TaskDir().SecretsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return t, err
		}
	}
	val, errs := schema.Value(d.spec, p.config)
	if len(errs) > 0 {
		return t, errors.Join(errs...)
	}
	if err := cfg.EncodeDriverConfig(val); err != nil {
		return t, err
	}
	if cgroupslib.GetMode() != cgroupslib.OFF {
		t.group = cgroupslib.Factory(cfg.AllocID, cfg.Name, false)
		if err := t.group.Setup(); err != nil {
			return t, err
		}
	}
	if !d.logmon {
		return t, nil
	}
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return t, err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0) // so that the executor's open does not wait
		if err != nil {
			return t, err
		}
		t.fifos = append(t.fifos, f)
	}
	return t, nil
}

func (t *preparedTask) remove() (err error) {
	for _, f := range t.fifos {
		f.Close()
	}
	if t.group != nil {
		err = t.group.Teardown()
	}
	return errors.Join(err, os.RemoveAll(t.cfg.AllocDir))
}

// fork starts a program without a driver.
func (s *starter) fork(cmd *exec.Cmd) (first, call time.Duration, err error) {
	begin := monotonic()
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	returned := monotonic()
	at, err := s.told()
	return at - begin, returned - begin, errors.Join(err, cmd.Wait())
}

// told reads the time that a program has written.
func (s *starter) told() (time.Duration, error) {
	if err := s.times.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, err
	}
	var b [16]byte
	if _, err := s.times.Read(b[:]); err != nil {
		return 0, fmt.Errorf("failed to read the time of the program: %w", err)
	}
	le := binary.LittleEndian
	return time.Duration(le.Uint64(b[:8]))*time.Second + time.Duration(le.Uint64(b[8:])), nil
}

func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // fails only for an unknown clock
	return time.Duration(ts.Nano())
}

// task describes a task as Nomad does, with limits and an environment of 40 variables.
func (s *starter) task() *drivers.TaskConfig {
	alloc := fmt.Sprintf("%08x-0000-4000-8000-%012x", os.Getpid(), s.n)
	allocDir := filepath.Join(s.dir, "alloc", alloc)
	const name = "probe"
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
		"NOMAD_ALLOC_NAME": "bench.group[0]", "NOMAD_ALLOC_INDEX": "0", "NOMAD_REGION": "global"}
	for i := len(env); i < 40; i++ {
		env[fmt.Sprintf("NOMAD_META_setting_%d", i)] = "a value of the usual length"
	}
	return &drivers.TaskConfig{
		ID: alloc + "/" + name + "/0", AllocID: alloc, Name: name, JobName: "bench", JobID: "bench",
		TaskGroupName: "group", Namespace: "default", NodeID: "bench", NodeName: "bench",
		Env: env, AllocDir: allocDir,
		StdoutPath: filepath.Join(allocDir, "alloc", "logs", "."+name+".stdout.fifo"),
		StderrPath: filepath.Join(allocDir, "alloc", "logs", "."+name+".stderr.fifo"),
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

// supervisorGone waits until the supervisor that keeps its state in dir has ended. It ends
// by itself when it has neither tasks nor a plugin.
func supervisorGone(ctx context.Context, dir string) error {
	err := wait(context.WithoutCancel(ctx), 100*time.Millisecond, func() (bool, error) {
		ps, err := tree(0, dir, "\x00")
		return !slices.ContainsFunc(ps, func(p process) bool { return p.role == isSupervisor }), err
	})
	if err != nil {
		return fmt.Errorf("the supervisor does not end: %w", err)
	}
	return nil
}
