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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// python is the cost of environments: of one in the cache, of one that is built, and of one
// that many tasks need at once.
type python struct {
	starts map[string]series // until the script's first line, by the way to start it
	cold   []*coldStarts     // of each installer
	noUV   bool
	place  string // of all files
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

// script reads the clock first, writes the time, and then imports its packages.
const script = `import time; now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
import importlib, sys
with open(sys.argv[1], "wb", buffering=0) as f:
    f.write(b"".join(n.to_bytes(8, "little") for n in divmod(now, 10**9)))
for name in sys.argv[2:]:
    importlib.import_module(name)
`

// noDisk is a directory in memory, unless TMPDIR is set or there is none. On a disk, creating
// thousands of files takes four times as long as the processor's part of it, and varies more
// between rounds than between the two sides.
func noDisk() (dir, what string) {
	const shm, needed = "/dev/shm", 1 << 30
	var st unix.Statfs_t
	if os.Getenv("TMPDIR") != "" || unix.Statfs(shm, &st) != nil || st.Type != unix.TMPFS_MAGIC ||
		st.Bavail*uint64(st.Bsize) < needed {
		return "", "below " + os.TempDir()
	}
	return shm, "in memory (" + shm + ")"
}

// pythonBench is a directory that tasks of any user can reach, with their script and wheels.
type pythonBench struct {
	*bench
	*starter
	script, wheels, cache, requirements string
	large                               []string // the packages of the large environment
	pip, uv                             string   // pip is a directory; uv is empty if there is none
}

func (b *bench) measurePython(ctx context.Context) (err error) {
	place, what := noDisk()
	dir, err := os.MkdirTemp(place, "orpy-") // short: unix sockets are below it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, supervisorGone(ctx, dir), os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	pb, err := newPythonBench(b, dir)
	if err != nil {
		return err
	}
	defer pb.times.Close()
	b.python = &python{noUV: pb.uv == "", place: what}
	installers := []string{"pip", "uv"}
	if b.python.noUV {
		installers = installers[:1]
	}
	for _, installer := range installers {
		if err := pb.measure(ctx, b.python, installer); err != nil {
			return err
		}
	}
	return nil
}

// measure adds the builds with an installer, and with pip the cached starts.
func (b *pythonBench) measure(ctx context.Context, p *python, installer string) error {
	d, err := openPlugin(ctx, b.pythonBinary, b.config(installer))
	if err != nil {
		return err
	}
	defer d.close()
	c, err := b.measureCold(ctx, d, installer)
	if err != nil {
		return err
	}
	p.cold = append(p.cold, c)
	if installer != "pip" {
		return nil
	}
	return b.step(func() error {
		p.starts, err = b.measureCached(ctx, d)
		return err
	}, "%d starts of a Python script in each of 5 ways, one after the other", b.pythonStarts)
}

func newPythonBench(run *bench, dir string) (*pythonBench, error) {
	s, err := newStarter(filepath.Join(dir, "tasks"))
	if err != nil {
		return nil, err
	}
	b := &pythonBench{
		bench: run, starter: s, script: filepath.Join(dir, "script.py"), wheels: filepath.Join(dir, "wheels"),
		cache: filepath.Join(dir, "cache"), requirements: filepath.Join(dir, "requirements.txt"),
		uv: wheel.FindUV(handUser),
	}
	wheels := []wheel.Wheel{packageOf("little", 5)}
	for i := range packages {
		b.large = append(b.large, fmt.Sprintf("package%d", i))
		wheels = append(wheels, packageOf(b.large[i], modules))
	}
	if b.pip, err = findPip(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(b.wheels, 0o755); err != nil {
		return nil, err
	}
	for _, w := range wheels {
		if err := w.Write(b.wheels); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(b.requirements, []byte(strings.Join(pinned(b.large), "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	return b, os.WriteFile(b.script, []byte(script), 0o644)
}

// config is the plugin's.
func (b *pythonBench) config(installer string) map[string]any {
	c := map[string]any{
		"state_dir": filepath.Join(b.starter.dir, installer), "cache_dir": b.cache, "installer": installer,
		"find_links": []string{b.wheels}, "offline": true, "build_user": fmt.Sprint(buildUser),
	}
	if installer == "uv" {
		c["uv"] = b.uv
	}
	return c
}

// task is the script with the packages that it imports.
func (b *pythonBench) task(packages ...string) program {
	config := map[string]any{"script": b.script, "python": interpreted, "args": append([]string{b.fifo}, packages...)}
	if len(packages) > 0 {
		config["requirements"] = pinned(packages)
	}
	return program{config: config}
}

// pinned are the requirements for packages.
func pinned(packages []string) (requirements []string) {
	for _, name := range packages {
		requirements = append(requirements, name+"==1.0")
	}
	return requirements
}

// measureCached leaves the large environment in the cache.
func (b *pythonBench) measureCached(ctx context.Context, d *driver) (map[string]series, error) {
	liteDriver, err := openPlugin(ctx, b.liteBinary, map[string]any{"state_dir": filepath.Join(b.starter.dir, "lite")})
	if err != nil {
		return nil, err
	}
	defer liteDriver.close()
	asTask := program{config: map[string]any{"command": interpreted, "args": []string{b.script, b.fifo}}, user: "nobody"}
	r, err := takeTurns(ctx, b.pythonStarts, []way{
		{bare, func() (first, call time.Duration, err error) {
			cmd := exec.Command(interpreted, b.script, b.fifo)
			cmd.Env = handEnv("/")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: handUser}
			return b.fork(cmd)
		}},
		{asExec, b.by(ctx, liteDriver, asTask)},
		{noEnv, b.by(ctx, d, b.task())},
		{smallIn, b.by(ctx, d, b.task("little"))}, // the first start builds the environment
		{largeIn, b.by(ctx, d, b.task(b.large...))},
	})
	if err != nil {
		return nil, err
	}
	return r.first, nil
}

// coldStarts are the times until the first line of a program that needs all packages, with no
// environment in the cache.
type coldStarts struct {
	installer                string
	driver, hand, uncompiled series // each round
	many                     series // until the last of manyTasks tasks has begun, each round
	builds                   []int  // of these
}

func (b *pythonBench) measureCold(ctx context.Context, d *driver, installer string) (*coldStarts, error) {
	c := &coldStarts{installer: installer}
	if _, _, err := b.start(ctx, d, b.task(), 1); err != nil { // the driver's first task waits for its interpreters
		return nil, err
	}
	for round := range b.pythonRounds {
		err := b.step(func() error { return b.coldRound(ctx, d, c, round%2 == 0) },
			"Round %d of %d: an environment of %d packages with %s, by hand, by the driver, and for %d tasks at once",
			round+1, b.pythonRounds, packages, installer, manyTasks)
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (b *pythonBench) coldRound(ctx context.Context, d *driver, c *coldStarts, handFirst bool) error {
	turns := []func() error{
		func() error {
			installed, compiled, first, err := b.buildByHand(ctx, c.installer)
			c.hand, c.uncompiled = append(c.hand, first), append(c.uncompiled, first-(compiled-installed))
			return err
		},
		func() error {
			first, _, err := b.start(ctx, d, b.task(b.large...), 1)
			c.driver = append(c.driver, first)
			return err
		},
	}
	if !handFirst {
		slices.Reverse(turns)
	}
	turns = append(turns, func() error {
		before := d.builds.Load()
		last, _, err := b.start(ctx, d, b.task(b.large...), manyTasks)
		c.many, c.builds = append(c.many, last), append(c.builds, int(d.builds.Load()-before))
		return err
	})
	for _, turn := range turns {
		if err := b.putAside(); err != nil {
			return err
		}
		syscall.Sync() // no turn waits for the writes of the one before
		if err := turn(); err != nil {
			return err
		}
	}
	return nil
}

// putAside moves the cache out of the way until the end of the run. If it were removed now,
// the files of the next turn could take much longer: ext4 without a journal examines each
// recently freed inode before it takes another (fs/ext4/ialloc.c, recently_deleted).
func (b *pythonBench) putAside() error {
	b.n++
	err := os.Rename(b.cache, fmt.Sprintf("%s-%d", b.cache, b.n))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
