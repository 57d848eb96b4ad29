// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// python is what environments cost: one that is there, one that is made, and one that many
// tasks ask for at once.
type python struct {
	starts map[string][]time.Duration // until the program's first line, by what was started
	cold   []*coldStarts              // of each installer
	noUV   bool
	place  string // where all of it was
}

// The ways to start the same script.
const (
	bare    = "fork+exec of python3"
	asExec  = "exec-lite"
	noEnv   = "python, no requirements"
	smallIn = "python, cached environment of 1 package"
	largeIn = "python, cached environment of 10"
)

// What is installed: packages in all, modules of each, and bytecode of each.
const (
	packages    = 10
	modules     = 100
	interpreted = "/usr/bin/python3" // which every user can run
	buildUser   = 79999
	manyTasks   = 20
)

// script tells the time before it does anything else, and then whether its packages are there.
const script = `import time; now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
import importlib, sys
with open(sys.argv[1], "wb", buffering=0) as f:
    f.write(b"".join(n.to_bytes(8, "little") for n in divmod(now, 10**9)))
for name in sys.argv[2:]:
    importlib.import_module(name)
`

// noDisk is a directory that is no disk's, where there is one and TMPDIR does not say another:
// to make thousands of files takes a disk four times as long as it takes the processor, and
// differs more from round to round than the two sides do.
func noDisk() (dir, what string) {
	const shm, needed = "/dev/shm", 1 << 30
	var st unix.Statfs_t
	if os.Getenv("TMPDIR") != "" || unix.Statfs(shm, &st) != nil || st.Type != unix.TMPFS_MAGIC ||
		st.Bavail*uint64(st.Bsize) < needed {
		return "", "below " + os.TempDir()
	}
	return shm, "in memory (" + shm + ")"
}

// pythonBench is a directory that tasks of any user can reach, with what they run and install.
type pythonBench struct {
	*starter
	script, wheels, cache, requirements string
	small, large                        []string // requirements
	hand                                byHand
}

func measurePython(ctx context.Context, steps *term.Printer, liteBinary, binary string, o options) (_ *python,
	err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	place, what := noDisk()
	dir, err := os.MkdirTemp(place, "orpy-") // short: unix sockets are below it
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, supervisorGone(ctx, dir), os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	b, err := newPythonBench(dir)
	if err != nil {
		return nil, err
	}
	defer b.times.Close()
	p := &python{noUV: b.hand.uv == "", place: what}
	for _, installer := range []string{"pip", "uv"} {
		if installer == "uv" && p.noUV {
			continue
		}
		err := func() error {
			w := &watched{}
			d, closePlugin, err := openPlugin(ctx, binary, b.config(installer), w.hear)
			if err != nil {
				return err
			}
			defer closePlugin()
			c, err := b.measureCold(ctx, steps, d, w, installer, o)
			if err != nil {
				return err
			}
			p.cold = append(p.cold, c)
			if installer == "pip" {
				p.starts, err = b.measureCached(ctx, steps, liteBinary, d, o)
			}
			return err
		}()
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

func newPythonBench(dir string) (*pythonBench, error) {
	s, err := newStarter(filepath.Join(dir, "tasks"))
	if err != nil {
		return nil, err
	}
	as := &syscall.Credential{Uid: buildUser, Gid: buildUser}
	b := &pythonBench{
		starter: s, script: filepath.Join(dir, "script.py"), wheels: filepath.Join(dir, "wheels"),
		cache: filepath.Join(dir, "cache"), requirements: filepath.Join(dir, "requirements.txt"),
	}
	for i := range packages {
		b.large = append(b.large, fmt.Sprintf("package%d==1.0", i))
	}
	b.small = []string{"little==1.0"}
	b.hand = byHand{python: interpreted, wheels: b.wheels, requirements: b.requirements, uv: wheel.FindUV(as), as: as}
	if b.hand.pip, err = findPip(interpreted); err != nil {
		return nil, err
	}
	if err := os.Mkdir(b.wheels, 0o755); err != nil {
		return nil, err
	}
	if err := packageOf("little", 5).Write(b.wheels); err != nil {
		return nil, err
	}
	for _, name := range names(b.large) {
		if err := packageOf(name, modules).Write(b.wheels); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(b.requirements, []byte(strings.Join(b.large, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	return b, os.WriteFile(b.script, []byte(script), 0o644)
}

// config is the plugin's.
func (b *pythonBench) config(installer string) map[string]any {
	c := map[string]any{
		"state_dir": filepath.Join(b.dir, installer), "cache_dir": b.cache, "installer": installer,
		"find_links": []string{b.wheels}, "offline": true, "build_user": fmt.Sprint(buildUser),
	}
	if installer == "uv" {
		c["uv"] = b.hand.uv
	}
	return c
}

// task is the script, with packages that it imports.
func (b *pythonBench) task(requirements []string) program {
	config := map[string]any{"script": b.script, "python": interpreted,
		"args": append([]string{b.fifo}, names(requirements)...)}
	if requirements != nil {
		config["requirements"] = requirements
	}
	return program{config: config}
}

// names are the packages of requirements.
func names(requirements []string) []string {
	var list []string
	for _, r := range requirements {
		name, _, _ := strings.Cut(r, "==")
		list = append(list, name)
	}
	return list
}

// measureCached has the large environment in the cache.
func (b *pythonBench) measureCached(ctx context.Context, steps *term.Printer, liteBinary string, d *driver,
	o options) (_ map[string][]time.Duration, err error) {
	end := steps.Step("%d starts of a Python script in each of 5 ways, one after the other", o.pythonStarts)
	defer func() { end(err, "") }()
	liteDriver, closeLite, err := openPlugin(ctx, liteBinary, map[string]any{"state_dir": filepath.Join(b.dir, "lite")},
		nil)
	if err != nil {
		return nil, err
	}
	defer closeLite()
	byDriver := func(d *driver, p program) func() (first, call time.Duration, err error) {
		return func() (first, call time.Duration, err error) { return b.start(ctx, d, p) }
	}
	asTask := program{config: map[string]any{"command": interpreted, "args": []string{b.script, b.fifo}}, user: "nobody"}
	r, err := takeTurns(ctx, o.pythonStarts, []way{
		{bare, func() (first, call time.Duration, err error) {
			cmd := exec.Command(interpreted, b.script, b.fifo)
			cmd.Env = handEnv("/")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.hand.as}
			return b.fork(cmd)
		}},
		{asExec, byDriver(liteDriver, asTask)},
		{noEnv, byDriver(d, b.task(nil))},
		{smallIn, byDriver(d, b.task(b.small))}, // the first ones build the environments
		{largeIn, byDriver(d, b.task(b.large))},
	})
	if err != nil {
		return nil, err
	}
	return r.first, nil
}

// coldStarts are the times from nothing until the first line of a program that needs all packages.
type coldStarts struct {
	installer                string
	driver, hand, uncompiled []time.Duration // each round
	many                     []time.Duration // until the last of manyTasks tasks has begun, each round
	builds                   []int           // of these
}

func (b *pythonBench) measureCold(ctx context.Context, steps *term.Printer, d *driver, w *watched, installer string,
	o options) (_ *coldStarts, err error) {
	c := &coldStarts{installer: installer}
	if _, _, err := b.start(ctx, d, b.task(nil)); err != nil { // a driver has asked the interpreters before its first task
		return nil, err
	}
	for round := range o.pythonRounds {
		end := steps.Step("Round %d of %d: an environment of %d packages with %s, by hand, by the driver, and for %d "+
			"tasks at once",
			round+1, o.pythonRounds, packages, installer, manyTasks)
		err := b.coldRound(ctx, d, w, c, round%2 == 0)
		end(err, "")
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (b *pythonBench) coldRound(ctx context.Context, d *driver, w *watched, c *coldStarts, handFirst bool) error {
	turns := []func() error{
		func() error { return b.coldByHand(ctx, c) },
		func() error { return b.coldByDriver(ctx, d, c) },
	}
	if !handFirst {
		slices.Reverse(turns)
	}
	turns = append(turns, func() error {
		before := w.builds.Load()
		last, err := b.startAll(ctx, d, b.task(b.large), manyTasks)
		c.many, c.builds = append(c.many, last), append(c.builds, int(w.builds.Load()-before))
		return err
	})
	for _, turn := range turns {
		if err := b.putAside(b.cache); err != nil {
			return err
		}
		syscall.Sync() // what one has written is not waited for by another
		if err := turn(); err != nil {
			return err
		}
	}
	return nil
}

// putAside keeps what a turn has made until the end. After a removal new files can take
// much longer (ext4 without a journal looks at each inode that was freed lately, before it
// takes another: fs/ext4/ialloc.c, recently_deleted), and the next turn would pay for it.
func (b *pythonBench) putAside(dir string) error {
	aside, err := os.MkdirTemp(b.dir, "aside-")
	if err != nil {
		return err
	}
	if err := os.Rename(dir, filepath.Join(aside, filepath.Base(dir))); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (b *pythonBench) coldByHand(ctx context.Context, c *coldStarts) error {
	command := append([]string{b.script, b.fifo}, names(b.large)...)
	hand := filepath.Join(b.dir, "hand")
	installed, compiled, first, err := b.hand.build(ctx, b.starter, c.installer, hand, command)
	err = errors.Join(err, b.putAside(hand))
	c.hand, c.uncompiled = append(c.hand, first), append(c.uncompiled, first-(compiled-installed))
	return err
}

func (b *pythonBench) coldByDriver(ctx context.Context, d *driver, c *coldStarts) error {
	first, _, err := b.start(ctx, d, b.task(b.large))
	c.driver = append(c.driver, first)
	return err
}

// startAll starts n tasks at once and returns when the last one has begun.
func (s *starter) startAll(ctx context.Context, d *driver, p program, n int) (last time.Duration, err error) {
	var configs []*drivers.TaskConfig
	for range n {
		cfg, remove, failed := s.prepare(d, p)
		if failed != nil {
			return 0, failed
		}
		defer func() { err = errors.Join(err, remove()) }()
		configs = append(configs, cfg)
	}
	begin := monotonic()
	errs := make(chan error)
	for _, cfg := range configs {
		go func() {
			_, _, err := d.StartTask(cfg)
			errs <- err
		}()
	}
	for range configs {
		err = errors.Join(err, <-errs)
	}
	for _, cfg := range configs {
		defer func() { err = errors.Join(err, d.DestroyTask(cfg.ID, true)) }()
	}
	if err != nil {
		return 0, err
	}
	for range configs {
		at, err := s.told()
		if err != nil {
			return 0, err
		}
		last = max(last, at)
	}
	for _, cfg := range configs {
		exited, err := d.WaitTask(ctx, cfg.ID)
		if err != nil {
			return 0, err
		}
		if r := <-exited; r == nil || !r.Successful() {
			return 0, fmt.Errorf("the program failed: %+v", r)
		}
	}
	return last - begin, nil
}

// watched counts the builds that the driver tells of.
type watched struct{ builds atomic.Int32 }

func (w *watched) hear(e *drivers.TaskEvent) {
	if strings.HasPrefix(e.Message, "Environment: not in the cache") {
		w.builds.Add(1)
	}
}
