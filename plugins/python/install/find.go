// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Finder finds the node's uv, and by it the node's interpreters. It is safe for concurrent use.
type Finder struct {
	uv      string              // the configured program; "" is that of the agent's PATH
	dirs    []string            // patterns (filepath.Match) of directories with interpreters
	as      *syscall.Credential // the user that runs uv and interpreters, nil for this process's
	timeout time.Duration

	mu       sync.Mutex // guards the rest, and is held while uv runs
	found    Installer
	file     string // the identity of found
	listings map[string]listing
}

// NewFinder returns a Finder that has not searched yet. Without patterns of directories it looks where interpreters
// usually are. As should have no more rights than tasks, so that they can run what it finds.
func NewFinder(uv string, dirs []string, as *syscall.Credential) *Finder {
	if len(dirs) == 0 {
		dirs = usualDirs()
	}
	// uv is quick, but the node may be overloaded
	return &Finder{uv: uv, dirs: dirs, as: as, timeout: 30 * time.Second}
}

// Find returns the uv that was found last, as long as its file is the same, and searches otherwise. The error says what
// to install on the node; it has Temporary() true if a program may be uv and could not answer now.
func (f *Finder) Find(ctx context.Context) (Installer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(ctx)
}

// find is for those who have the lock.
func (f *Finder) find(ctx context.Context) (Installer, error) {
	path := f.uv
	if path == "" {
		path, _ = exec.LookPath("uv")
	}
	file := identity(path)
	if file == "" || !filepath.IsAbs(path) {
		return Installer{}, fmt.Errorf("there is no uv on the agent's PATH or at the path of the option uv, %q: install it "+
			"(pip install uv)", f.uv)
	}
	if f.found.Path == path && f.file == file {
		return f.found, nil
	}
	version, err := f.version(ctx, path)
	if err != nil {
		return Installer{}, err
	}
	f.found, f.file = Installer{Path: path, Version: version}, file
	return f.found, nil
}

// identity is that of a file which was not changed, "" if it is not there.
func identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino, info.Size(), info.ModTime().UnixNano())
}

// version asks a program whether it is uv.
func (f *Finder) version(ctx context.Context, path string) (string, error) {
	env := []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "UV_NO_CONFIG=1"}
	out, err := ask(ctx, f.timeout, f.as, env, path, "--version")
	busy := errors.Is(err, syscall.ETXTBSY) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN)
	switch {
	case errors.Is(err, errLate) || busy: // the node is overloaded, or the program is just being written
		return "", &Error{Words: fmt.Sprintf("whether %s is uv is not known yet: %v", path, err), temporary: true}
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", fmt.Errorf("the build user can't run %s: %w", path, err)
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(out), " ")
	version, _, _ := strings.Cut(rest, " ")
	if name != "uv" || version == "" {
		return "", fmt.Errorf("%s is not uv: it answers %.80q to --version", path, strings.TrimSpace(out))
	}
	return version, nil
}
