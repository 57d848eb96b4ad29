// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestOpenRegular_RefusesFilesThatAreNotRegular(t *testing.T) {
	dir := t.TempDir()
	file, fifo, link := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	must.NoError(t, os.WriteFile(file, []byte("text"), 0o600))
	must.NoError(t, unix.Mkfifo(fifo, 0o600))
	must.NoError(t, os.Symlink(file, link))
	for _, path := range []string{fifo, "/dev/null", dir, "/dev/tty"} {
		f, err := openRegular(path)
		test.ErrorContains(t, err, "not a regular file", test.Sprintf("%s: %v", path, f))
	}
	for _, path := range []string{file, link} {
		f, err := openRegular(path)
		must.NoError(t, err)
		b, err := io.ReadAll(f)
		must.Eq(t, "text", string(b), must.Sprintf("%s: %q", path, b))
		test.NoError(t, err, test.Sprintf("%s: %q", path, b))
		must.NoError(t, f.Close())
	}
}

func TestStartError_IsRecoverableIfTheDiskIsFull(t *testing.T) {
	err := startError(t.Context(), fmt.Errorf("failed to seal: %w", &os.PathError{Err: unix.ENOSPC}), time.Minute)
	test.True(t, structs.IsRecoverable(err))
	test.ErrorContains(t, err, "cache_max_size")
	test.False(t, structs.IsRecoverable(startError(t.Context(), errors.New("no such package"), time.Minute)))
}

func TestConfig_RefusesInvalidOptions(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"in interpreters is not": func(c *Config) { c.Interpreters = []string{"python3"} },
		"write it as":            func(c *Config) { c.IndexURL = "token:secret@host" },
		"in find_links is":       func(c *Config) { c.FindLinks = []string{"wheels"} },
		"cache_dir":              func(c *Config) { c.CacheDir = "cache" },
	} {
		var c Config
		c.IndexURL, c.BuildUser = "https://pypi.org/simple", "79999"
		change(&c)
		_, err := newInstance(c, hclog.NewNullLogger())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", want, err)
		}
	}
}
