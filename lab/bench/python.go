// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// The size of the measured environment, and an interpreter that every user can run.
const (
	packages    = 10
	modules     = 100
	interpreter = "/usr/bin/python3"
)

// script writes the byte that the starter waits for, and then imports the packages.
const script = `import sys; open(sys.argv[1], "wb").write(b"x")
import importlib
for name in sys.argv[2:]:
    importlib.import_module(name)
`

var nobody = &syscall.Credential{Uid: 65534, Gid: 65534}

// pythonBench has the files of the python tasks, in a directory that every user can read.
type pythonBench struct {
	*bench
	*starter
	uv, script, wheels, cache string
	requirements              []string
	names                     []string // names of the packages
}

// measurePython compares the start of a task in a cached environment with the start of a bare interpreter, and a task
// that builds its environment with a build by hand, with uv and with pip.
func (b *bench) measurePython(ctx context.Context) error {
	uv := wheel.FindUV(nobody)
	if uv == "" {
		log.Print("python is not measured: PATH has no uv that any user can run")
		return nil
	}
	s, err := newStarter(filepath.Join(b.dir, "python"))
	if err != nil {
		return err
	}
	defer s.began.Close()
	p := &pythonBench{bench: b, starter: s, uv: uv, script: filepath.Join(s.dir, "script.py"),
		wheels: filepath.Join(s.dir, "wheels"), cache: filepath.Join(s.dir, "cache")}
	if err := p.prepare(); err != nil {
		return err
	}
	d, err := openPlugin(b.binaries["python"], map[string]any{"state_dir": filepath.Join(s.dir, "state"),
		"cache_dir": p.cache, "uv": uv, "interpreters": []string{filepath.Dir(interpreter)},
		"find_links": []string{p.wheels}, "offline": true})
	if err != nil {
		return err
	}
	defer d.close()
	task := p.by(ctx, d, map[string]any{"script": p.script, "requirements": p.requirements,
		"args": append([]string{p.fifo}, p.names...)})
	log.Printf("measuring %d builds of an environment", b.rounds)
	err = p.measureBuilds(ctx, task)
	if err != nil {
		return err
	}
	log.Printf("measuring %d starts of a script", b.starts)
	bare := func() (time.Duration, error) { return p.fork(p.asNobody(interpreter, p.script, p.fifo)) }
	return p.takeTurns(ctx, [2]string{"python", "bare python3"}, "start in a cached environment", [2]way{task, bare})
}

func (p *pythonBench) prepare() error {
	if err := errors.Join(os.Mkdir(p.wheels, 0o755), os.WriteFile(p.script, []byte(script), 0o644)); err != nil {
		return err
	}
	for i := range packages {
		name := fmt.Sprintf("package%d", i)
		p.names, p.requirements = append(p.names, name), append(p.requirements, name+"==1.0")
		files := map[string]string{name + "/__init__.py": ""}
		for n := range modules - 1 { // 2 kB each, like a typical module
			files[fmt.Sprintf("%s/module%d.py", name, n)] = strings.Repeat("def f(a, b=1):\n    return [a + b, a * b]\n\n\n", 45)
		}
		if err := (wheel.Wheel{Name: name, Version: "1.0", Files: files}).Write(p.wheels); err != nil {
			return err
		}
	}
	return nil
}

// measureBuilds compares a task that builds its environment with each way to build it by hand, in turns. At the end,
// the driver's cache has the environment.
func (p *pythonBench) measureBuilds(ctx context.Context, task way) error {
	if _, err := task(); err != nil { // not counted, because it also waits for the driver's list of interpreters
		return err
	}
	for round := range p.rounds * len(hands) {
		hand := hands[round%len(hands)]
		for side, build := range []way{task, func() (time.Duration, error) { return p.byHand(hand.commands) }} {
			// empty the cache, but delete nothing yet: ext4 would examine the inodes of deleted files during the next builds
			err := os.Rename(p.cache, fmt.Sprintf("%s-%d-%d", p.cache, round, side))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			syscall.Sync() // or this build would wait for the writes of the previous one
			took, err := build()
			err = errors.Join(err, ctx.Err())
			if err != nil {
				return err
			}
			measured := fmt.Sprintf("start with a build of %d packages", packages)
			p.add([2]string{"python", hand.name}, measured, "ms", side, milliseconds(took))
		}
	}
	_, err := task()
	return err
}

// hands are the ways to build the environment by hand, with the commands of a user.
var hands = []struct{ name, commands string }{
	{"uv by hand", `"$UV" venv --quiet --cache-dir cache --python ` + interpreter + ` env
"$UV" pip install --quiet --cache-dir cache --link-mode copy --compile-bytecode --python env/bin/python "$@"
`},
	{"pip by hand", interpreter + ` -m venv env
env/bin/python -m pip install --quiet --cache-dir cache --disable-pip-version-check "$@" # which compiles by itself
`},
}

// byHand builds the environment in a new directory with these commands, and starts the script in it.
func (p *pythonBench) byHand(commands string) (time.Duration, error) {
	dir, err := os.MkdirTemp(p.starter.dir, "hand-")
	if err == nil {
		err = os.Chown(dir, int(nobody.Uid), int(nobody.Gid))
	}
	if err != nil {
		return 0, err
	}
	cmd := p.asNobody("/bin/sh", "-ec", commands+`exec env/bin/python "$SCRIPT" "$FIFO" $NAMES`, "sh")
	cmd.Args = append(cmd.Args, "--no-index", "--find-links", p.wheels)
	cmd.Args = append(cmd.Args, p.requirements...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(cmd.Env, "UV="+p.uv, "SCRIPT="+p.script, "FIFO="+p.fifo, "NAMES="+strings.Join(p.names, " "))
	return p.fork(cmd)
}

func (p *pythonBench) asNobody(args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/nonexistent"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: nobody, Setsid: true} // autogroup (sched(7)) schedules by session
	return cmd
}
