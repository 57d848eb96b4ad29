// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/hashicorp/hc-install/product"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// Version is the Nomad release that the lab downloads or builds. Any existing 1.11 or 2.0 agent works too: the plugin
// protocol is the same.
const Version = "1.11.3"

// Origin is where a Nomad binary came from.
type Origin string

// The origins, in the order in which they are tried.
const (
	FromEnv     Origin = "NOMAD_BIN"
	FromPath    Origin = "PATH"
	FromCache   Origin = "cache"
	FromRelease Origin = "official release"
	FromSource  Origin = "built from source"
)

// Program is a Nomad binary that was run once to learn its version.
type Program struct {
	Path    string
	Version string // "1.11.3"
	Origin  Origin
}

// Progress is called with the state of a step that can take minutes, in a few words. It may be nil.
type Progress func(format string, args ...any)

func (p Progress) say(format string, args ...any) {
	if p != nil {
		p(format, args...)
	}
}

// Binary finds a Nomad binary, or makes one. It looks at NOMAD_BIN, PATH and the user's cache, then downloads the
// official release, then builds the pinned module with the web UI. A NOMAD_BIN that does not work is an error, since
// the user set it.
func Binary(ctx context.Context, progress Progress) (Program, error) {
	dir, err := cache.Dir()
	if err != nil {
		return Program{}, err
	}
	return finder{cache: dir, release: fetchRelease, source: buildSource}.find(ctx, progress)
}

// finder is where Binary stores a new program and how it gets it, for tests to replace.
type finder struct {
	cache   string
	release func(ctx context.Context, dst string, progress Progress) error
	source  func(ctx context.Context, dst string, progress Progress) error
}

func (f finder) find(ctx context.Context, progress Progress) (Program, error) {
	if path := os.Getenv("NOMAD_BIN"); path != "" {
		v, err := usable(ctx, path)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			return Program{}, fmt.Errorf("failed to use NOMAD_BIN: %w", err)
		}
		return Program{Path: path, Version: v, Origin: FromEnv}, nil
	}

	if path, err := exec.LookPath("nomad"); err == nil {
		if v, err := usable(ctx, path); err == nil {
			return Program{Path: path, Version: v, Origin: FromPath}, nil
		} else {
			progress.say("passing over the nomad on PATH: %v", err)
		}
	}

	cached := filepath.Join(f.cache, fmt.Sprintf("nomad-%s-%s", Version, runtime.GOARCH))
	unlock, err := cache.Lock(ctx, cached+".lock", func() { // two labs must not build the same file at once
		progress.say("waiting for another process that is making the same binary")
	})
	if err != nil {
		return Program{}, err
	}
	defer unlock()
	if v, err := usable(ctx, cached); err == nil {
		return Program{Path: cached, Version: v, Origin: FromCache}, nil
	}

	origin := FromRelease
	if err := f.release(ctx, cached, progress); err != nil {
		if ctx.Err() != nil {
			return Program{}, ctx.Err()
		}
		progress.say("no official release (%v); building Nomad %s from source", err, Version)
		origin = FromSource
		if err := f.source(ctx, cached, progress); err != nil {
			return Program{}, fmt.Errorf("failed to build nomad %s (set NOMAD_BIN to a nomad binary to skip this): %w",
				Version, err)
		}
	}
	v, err := usable(ctx, cached)
	if err != nil {
		return Program{}, fmt.Errorf("failed to use the new nomad binary: %w", err)
	}
	return Program{Path: cached, Version: v, Origin: origin}, nil
}

// usable runs the program, and returns its version, or an error if the lab cannot use it.
func usable(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	v, err := product.Nomad.GetVersion(ctx, path)
	if err != nil {
		return "", fmt.Errorf("failed to run %s version: %w", path, err)
	}
	if line := fmt.Sprintf("%d.%d", v.Segments()[0], v.Segments()[1]); line != "1.11" && line != "2.0" {
		return "", fmt.Errorf("%s is Nomad %s, but the plugins are made for Nomad 1.11 and 2.0", path, v)
	}
	return v.String(), nil
}
