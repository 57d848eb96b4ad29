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

	"github.com/outrider-dev/outrider/lab/internal/poll"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// starts are the start latencies: from the call of StartTask to the program's
// first instruction, and to StartTask's return. floor is a bare fork and exec.
type starts struct {
	first, call map[string][]time.Duration
}

const (
	floor   = "fork+exec"
	spacing = 15 * time.Millisecond // what one start leaves to be done is not the next one's
	warmUp  = 5                     // the first starts the supervisor, pages in binaries
)

func measureStarts(ctx context.Context, steps *term.Printer, binary, dir string, o options) (_ *starts, err error) {
	end := steps.Step("%d starts of each driver, one after the other", o.starts)
	defer func() { end(err, "") }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := newStarter(dir)
	if err != nil {
		return nil, err
	}
	defer s.times.Close()
	probe := filepath.Join(dir, "probe")
	if err := writeProbe(probe); err != nil {
		return nil, err
	}
	timed := program{config: map[string]any{"command": probe, "args": []string{s.fifo}}}

	liteDriver, closeLite, err := openPlugin(ctx, binary, map[string]any{"state_dir": filepath.Join(dir, "state")}, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		closeLite()
		err = errors.Join(err, supervisorGone(ctx, dir))
	}()
	rawDriver, err := openRaw(ctx)
	if err != nil {
		return nil, err
	}

	return takeTurns(ctx, o.starts, []way{
		{lite, func() (first, call time.Duration, err error) { return s.start(ctx, liteDriver, timed) }},
		{raw, func() (first, call time.Duration, err error) { return s.start(ctx, rawDriver, timed) }},
		{floor, func() (first, call time.Duration, err error) { return s.fork(exec.Command(probe, s.fifo)) }},
	})
}

// way is one of the ways to start the same program.
type way struct {
	name  string
	start func() (first, call time.Duration, err error)
}

// takeTurns starts the program in each way, so many times, after a few that do not count.
func takeTurns(ctx context.Context, times int, ways []way) (*starts, error) {
	r := &starts{first: map[string][]time.Duration{}, call: map[string][]time.Duration{}}
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

// starter starts programs that tell when they began, as tasks.
type starter struct {
	dir, fifo string
	times     *os.File // the programs' words
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
	if err := os.Chmod(s.fifo, 0o666); err != nil { // whatever the umask is
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

// start runs one task from its cgroup's creation to its destruction.
func (s *starter) start(ctx context.Context, d *driver, p program) (first, call time.Duration, err error) {
	cfg, remove, err := s.prepare(d, p)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	begin := monotonic()
	_, _, err = d.StartTask(cfg)
	returned := monotonic()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, d.DestroyTask(cfg.ID, true)) }()
	exited, err := d.WaitTask(ctx, cfg.ID)
	if err != nil {
		return 0, 0, err
	}
	at, err := s.told()
	if err != nil {
		return 0, 0, err
	}
	if r := <-exited; r == nil || !r.Successful() {
		return 0, 0, fmt.Errorf("the program failed: %+v", r)
	}
	return at - begin, returned - begin, nil
}

// prepare does what Nomad's client does before it starts a task; remove undoes it.
func (s *starter) prepare(d *driver, p program) (_ *drivers.TaskConfig, remove func() error, err error) {
	s.n++
	cfg := s.task()
	cfg.User = p.user
	var undo []func() error
	remove = func() (err error) {
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()
	undo = append(undo, func() error { return os.RemoveAll(cfg.AllocDir) })
	for _, dir := range []string{cfg.TaskDir().LogDir, cfg.TaskDir().LocalDir, cfg.TaskDir().SecretsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, nil, err
		}
	}
	val, err := parse(p.config, d.spec)
	if err != nil {
		return nil, nil, err
	}
	if err := cfg.EncodeDriverConfig(val); err != nil {
		return nil, nil, err
	}
	if cgroupslib.GetMode() != cgroupslib.OFF {
		group := cgroupslib.Factory(cfg.AllocID, cfg.Name, false)
		if err := group.Setup(); err != nil {
			return nil, nil, err
		}
		undo = append(undo, group.Teardown)
	}
	if d.logmon {
		closeFIFOs, err := makeFIFOs(cfg)
		if err != nil {
			return nil, nil, err
		}
		undo = append(undo, func() error { closeFIFOs(); return nil })
	}
	return cfg, remove, nil
}

// fork is what the kernel asks for at least.
func (s *starter) fork(cmd *exec.Cmd) (first, call time.Duration, err error) {
	begin := monotonic()
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	returned := monotonic()
	at, err := s.told()
	return at - begin, returned - begin, errors.Join(err, cmd.Wait())
}

// told reads what a program has written.
func (s *starter) told() (time.Duration, error) {
	if err := s.times.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return 0, err
	}
	var b [16]byte
	if _, err := s.times.Read(b[:]); err != nil {
		return 0, fmt.Errorf("failed to hear from the program: %w", err)
	}
	le := binary.LittleEndian
	return time.Duration(le.Uint64(b[:8]))*time.Second + time.Duration(le.Uint64(b[8:])), nil
}

func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // fails for a bad clock alone
	return time.Duration(ts.Nano())
}

// task is a task as Nomad describes one: limits, and the usual environment.
func (s *starter) task() *drivers.TaskConfig {
	alloc := fmt.Sprintf("%08x-0000-4000-8000-%012x", os.Getpid(), s.n)
	allocDir := filepath.Join(s.dir, "alloc", alloc)
	const name = "probe"
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
	for key, value := range map[string]string{
		"ALLOC_DIR": filepath.Join(allocDir, "alloc"), "TASK_DIR": filepath.Join(allocDir, name, "local"),
		"SECRETS_DIR": filepath.Join(allocDir, name, "secrets"), "ALLOC_ID": alloc, "SHORT_ALLOC_ID": alloc[:8],
		"ALLOC_INDEX": "0", "ALLOC_NAME": "bench.group[0]", "CPU_CORES": "", "CPU_LIMIT": "100",
		"DC": "dc1", "GROUP_NAME": "group", "JOB_ID": "bench", "JOB_NAME": "bench", "MEMORY_LIMIT": "64",
		"NAMESPACE": "default", "PARENT_CGROUP": "nomad.slice", "REGION": "global", "TASK_NAME": name,
	} {
		env["NOMAD_"+key] = value
	}
	for i := len(env); i < 40; i++ {
		env[fmt.Sprintf("NOMAD_META_setting_%d", i)] = "a value of the length that values have"
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

// makeFIFOs stands in for logmon, which makes and reads them.
func makeFIFOs(cfg *drivers.TaskConfig) (undo func(), err error) {
	var open []*os.File
	undo = func() {
		for _, f := range open {
			f.Close()
		}
	}
	for _, path := range []string{cfg.StdoutPath, cfg.StderrPath} {
		if err := unix.Mkfifo(path, 0o600); err != nil {
			undo()
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0) // so that the executor's open does not wait
		if err != nil {
			undo()
			return nil, err
		}
		open = append(open, f)
	}
	return undo, nil
}

// supervisorGone waits until the supervisor that keeps its state in dir has ended
// by itself, as it does without task and plugin.
func supervisorGone(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := poll.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		ps, err := tree(0, dir, "\x00")
		return !slices.ContainsFunc(ps, func(p process) bool { return p.role == isSupervisor }), err
	})
	if err != nil {
		return fmt.Errorf("the supervisor does not end: %w", err)
	}
	return nil
}
