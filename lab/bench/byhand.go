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

// byHand makes the environment that the driver makes, with the same installer, as the same
// user, and with commands that a person could type.
type byHand struct {
	python, wheels, requirements string
	pip                          string // the directory of pip
	uv                           string
	as                           *syscall.Credential
}

// findPip asks the interpreter for its pip.
func findPip(python string) (string, error) {
	cmd := exec.Command(python, "-I", "-c", "import pip, os; print(os.path.dirname(pip.__file__))")
	cmd.Env = handEnv("/nonexistent")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("failed to find the pip of %s: %w", python, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func handEnv(home string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + home, "TMPDIR=" + home}
}

// build makes an environment in dir, which it makes, and runs the script with it.
// installed is when the packages were there, compiled when they had their bytecode too; what
// is left until the script's first line is the same in both.
func (h byHand) build(ctx context.Context, s *starter, installer, dir string, script []string) (installed, compiled,
	first time.Duration, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, 0, 0, err
	}
	if err := os.Chown(dir, int(h.as.Uid), int(h.as.Gid)); err != nil {
		return 0, 0, 0, err
	}
	env := filepath.Join(dir, "env")
	venv, install := h.pipCommands(env, filepath.Join(dir, "cache"))
	if installer == "uv" {
		venv, install = h.uvCommands(env, filepath.Join(dir, "cache"))
	}
	run := func(argv []string) error {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = dir, handEnv(dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.as, Setsid: true} // the scheduler may share by session
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
	if err := run([]string{h.python, "-m", "compileall", "-q", filepath.Join(env, "lib")}); err != nil {
		return 0, 0, 0, err
	}
	compiled = monotonic() - begin
	if err := run(append([]string{filepath.Join(env, "bin/python")}, script...)); err != nil {
		return 0, 0, 0, err
	}
	at, err := s.told()
	return installed, compiled, at - begin, err
}

// pipCommands run the interpreter's pip in the environment at once, where pip --python would
// start twice.
func (h byHand) pipCommands(env, cache string) (venv, install []string) {
	return []string{h.python, "-m", "venv", "--without-pip", env},
		[]string{filepath.Join(env, "bin/python"), h.pip, "install", "--no-compile", "--only-binary", ":all:",
			"--disable-pip-version-check", "--no-index", "--find-links", h.wheels, "--cache-dir", cache, "-r", h.requirements}
}

func (h byHand) uvCommands(env, cache string) (venv, install []string) {
	return []string{h.uv, "venv", "--cache-dir", cache, "--python", h.python, env},
		[]string{h.uv, "pip", "install", "--link-mode", "copy", "--no-build", "--python", filepath.Join(env, "bin/python"),
			"--no-index", "--find-links", h.wheels, "--cache-dir", cache, "-r", h.requirements}
}
