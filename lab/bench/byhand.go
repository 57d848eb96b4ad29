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
	"strings"
	"syscall"
	"time"
)

var handUser = &syscall.Credential{Uid: buildUser, Gid: buildUser}

// findPip returns the directory of the interpreter's pip.
func findPip() (string, error) {
	cmd := exec.Command(interpreted, "-I", "-c", "import pip, os; print(os.path.dirname(pip.__file__))")
	cmd.Env = handEnv("/nonexistent")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("failed to find the pip of %s: %w", interpreted, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func handEnv(home string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + home, "TMPDIR=" + home}
}

// buildByHand makes the environment that the driver makes, with the same installer, as the same
// user, and with commands that a person could type. Then it runs the script with it.
// installed is the time until the packages are there, compiled the time until their bytecode is
// too. The remaining time until the script's first line is the same with and without bytecode.
func (b *pythonBench) buildByHand(ctx context.Context, installer string) (installed, compiled, first time.Duration,
	err error) {
	dir, err := os.MkdirTemp(b.starter.dir, "hand-")
	if err != nil {
		return 0, 0, 0, err
	}
	if err := os.Chown(dir, buildUser, buildUser); err != nil {
		return 0, 0, 0, err
	}
	env := filepath.Join(dir, "env")
	venv, install := b.pipCommands(env, filepath.Join(dir, "cache"))
	if installer == "uv" {
		venv, install = b.uvCommands(env, filepath.Join(dir, "cache"))
	}
	run := func(argv []string) error {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = dir, handEnv(dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: handUser, Setsid: true} // the scheduler may share by session
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
		}
		return nil
	}
	begin := monotonic()
	if err := errors.Join(run(venv), run(install)); err != nil {
		return 0, 0, 0, err
	}
	installed = monotonic() - begin
	if err := run([]string{interpreted, "-m", "compileall", "-q", filepath.Join(env, "lib")}); err != nil {
		return 0, 0, 0, err
	}
	compiled = monotonic() - begin
	script := []string{filepath.Join(env, "bin/python"), b.script, b.fifo}
	if err := run(append(script, b.large...)); err != nil {
		return 0, 0, 0, err
	}
	at, err := b.told()
	return installed, compiled, at - begin, err
}

// pipCommands run the interpreter's pip in the environment at once, where pip --python would
// start twice.
func (b *pythonBench) pipCommands(env, cache string) (venv, install []string) {
	return []string{interpreted, "-m", "venv", "--without-pip", env},
		[]string{filepath.Join(env, "bin/python"), b.pip, "install", "--no-compile", "--only-binary", ":all:",
			"--disable-pip-version-check", "--no-index", "--find-links", b.wheels, "--cache-dir", cache, "-r", b.requirements}
}

func (b *pythonBench) uvCommands(env, cache string) (venv, install []string) {
	return []string{b.uv, "venv", "--cache-dir", cache, "--python", interpreted, env},
		[]string{b.uv, "pip", "install", "--link-mode", "copy", "--no-build", "--python", filepath.Join(env, "bin/python"),
			"--no-index", "--find-links", b.wheels, "--cache-dir", cache, "-r", b.requirements}
}
