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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/process"
)

// Find returns the uv to use: the configured program or, if that is "", the first on the agent's PATH and where uv's
// installers put it. The error says what to install on the node; it is a *NotKnownError if a program may be uv.
func Find(ctx context.Context, configured string, as *syscall.Credential) (Installer, error) {
	i, err := findUV(ctx, configured, as)
	if err != nil && ctx.Err() != nil {
		return Installer{}, ctx.Err() // a uv may exist
	}
	return i, err
}

// NotKnownError is about a program that may be uv, but could not answer now.
type NotKnownError struct {
	Path string
	Err  error
}

func (e *NotKnownError) Error() string {
	return fmt.Sprintf("whether %s is uv is not known yet: %v", e.Path, e.Err)
}

func (e *NotKnownError) Unwrap() error { return e.Err }

// Temporary reports that the same may succeed later, or elsewhere.
func (e *NotKnownError) Temporary() bool { return true }

var errNoUV = errors.New("there is no uv on the agent's PATH or where its installers put it: " +
	"install it, or name it by the option uv")

// findUV returns the first uv that answers. While an earlier candidate may still answer, it returns no later one.
func findUV(ctx context.Context, configured string, as *syscall.Credential) (Installer, error) {
	candidates := []string{configured}
	if configured == "" {
		candidates = uvPlaces()
	}
	var why []string
	for _, path := range candidates {
		version, err := uvVersion(ctx, path, as, uvTimeout)
		var notKnown *NotKnownError
		switch {
		case err == nil:
			return Installer{Path: path, Version: version}, nil
		case errors.As(err, &notKnown):
			return Installer{}, err
		case configured != "" || !errors.Is(err, os.ErrNotExist):
			why = append(why, fmt.Sprintf("%s: %v", path, err))
		}
	}
	if len(why) > 0 {
		return Installer{}, fmt.Errorf("no uv that the build user can run: %s", strings.Join(why, "; "))
	}
	return Installer{}, errNoUV
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

const uvTimeout = 30 * time.Second // uv is quick, but the node may be overloaded

// uvVersion asks a program whether it is uv.
func uvVersion(ctx context.Context, path string, as *syscall.Credential, timeout time.Duration) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	env := []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "UV_NO_CONFIG=1"}
	out, _, err := process.Ask(ctx, timeout, as, env, path, "--version")
	var errno syscall.Errno
	var exit *exec.ExitError
	switch {
	case errors.Is(err, process.ErrLate):
		return "", &NotKnownError{path, fmt.Errorf("it %w", err)}
	case errors.Is(err, process.ErrTooMuch):
		return "", fmt.Errorf("it is not uv: it %w", err)
	case errors.As(err, &errno) && (errno.Temporary() || errno == syscall.ENOMEM || errno == syscall.ETXTBSY):
		return "", &NotKnownError{path, err} // the node is overloaded, or the program is just being written
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return "", &NotKnownError{path, err} // the kernel does that when it is out of memory
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
