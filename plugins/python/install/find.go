// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/process"
)

// Finder finds the node's uv. It is safe for concurrent use.
type Finder struct {
	UV string              // the configured program; "" is the first on the agent's PATH and where uv's installers put it
	As *syscall.Credential // the user that asks for its version, nil for this process's

	searching chan struct{} // a semaphore, which guards found
	found     Installer
	file      os.FileInfo // of found
	timeout   time.Duration
}

// NewFinder returns a Finder that has not searched yet.
func NewFinder(uv string, as *syscall.Credential) *Finder {
	// uv is quick, but the node may be overloaded
	return &Finder{UV: uv, As: as, searching: make(chan struct{}, 1), timeout: 30 * time.Second}
}

// Find returns the uv that was found last, as long as its file is the same, and searches otherwise. The error says what
// to install on the node; it has Temporary() true if a program may be uv and could not answer now.
func (f *Finder) Find(ctx context.Context) (Installer, error) {
	select {
	case f.searching <- struct{}{}:
	case <-ctx.Done():
		return Installer{}, ctx.Err()
	}
	defer func() { <-f.searching }()
	if f.file != nil && sameFile(f.found.Path, f.file) {
		return f.found, nil
	}
	f.found, f.file = Installer{}, nil
	return f.search(ctx)
}

func sameFile(path string, before os.FileInfo) bool {
	now, err := os.Stat(path)
	return err == nil && os.SameFile(now, before) && now.ModTime().Equal(before.ModTime()) && now.Size() == before.Size()
}

// search returns the first uv that answers. While an earlier candidate may still answer, it returns no later one.
func (f *Finder) search(ctx context.Context) (Installer, error) {
	candidates := []string{f.UV}
	if f.UV == "" {
		candidates = uvPlaces()
	}
	var why []string
	for _, path := range candidates {
		info, err := os.Stat(path)
		version := ""
		if err == nil {
			version, err = f.version(ctx, path)
		}
		var temporary temporaryError
		switch {
		case err == nil:
			f.found, f.file = Installer{Path: path, Version: version}, info
			return f.found, nil
		case ctx.Err() != nil:
			return Installer{}, ctx.Err()
		case errors.As(err, &temporary):
			return Installer{}, err
		case f.UV != "" || !errors.Is(err, os.ErrNotExist):
			why = append(why, fmt.Sprintf("%s: %v", path, err))
		}
	}
	if len(why) > 0 {
		return Installer{}, fmt.Errorf("no uv that the build user can run: %s", strings.Join(why, "; "))
	}
	return Installer{}, errors.New("there is no uv on the agent's PATH or where its installers put it: " +
		"install it (pip install uv), or name it by the option uv")
}

// uvPlaces are the PATH and where uv's installers put it (docs.astral.sh/uv, installation).
func uvPlaces() []string {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	dirs = append(dirs, "/usr/local/bin", "/usr/bin")
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, filepath.Join(home, ".local/bin"), filepath.Join(home, ".cargo/bin"))
	}
	dirs = append(dirs, "/opt/uv", "/opt/uv/bin")
	var places []string
	for _, dir := range dirs {
		if path := filepath.Join(dir, "uv"); filepath.IsAbs(dir) && !slices.Contains(places, path) {
			places = append(places, path)
		}
	}
	return places
}

// temporaryError is about a passing state of the node: the same may succeed later, or elsewhere.
type temporaryError struct{ error }

func (e temporaryError) Temporary() bool { return true }

// version asks a program whether it is uv.
func (f *Finder) version(ctx context.Context, path string) (string, error) {
	env := []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "UV_NO_CONFIG=1"}
	out, _, err := process.Ask(ctx, f.timeout, f.As, env, path, "--version")
	busy := errors.Is(err, syscall.ETXTBSY) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN)
	switch {
	case errors.Is(err, process.ErrLate) || busy: // the node is overloaded, or the program is just being written
		return "", temporaryError{fmt.Errorf("whether %s is uv is not known yet: %w", path, err)}
	case err != nil:
		return "", err
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(out), " ")
	version, _, _ := strings.Cut(rest, " ")
	if name != "uv" || version == "" {
		return "", fmt.Errorf("it is not uv: it answers %q to --version", clean(strings.TrimSpace(out)))
	}
	return version, nil
}
