// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package nomad finds, downloads or builds the nomad program (Binary), and reads the state of an agent.
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
	"github.com/hashicorp/hc-install/releases"

	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// Version is the Nomad release that the lab downloads or builds. An installed Nomad 1.11 or 2.0 works, too, because its
// plugin protocol is the same.
const Version = "1.11.3"

// Binary returns the path of a Nomad binary. It tries NOMAD_BIN, PATH and the user's cache. Then it downloads the
// official release or, if this fails, builds the pinned module with the web UI. A NOMAD_BIN that does not work is an
// error, since the user set it. Binary calls progress during steps that can take minutes.
func Binary(ctx context.Context, progress func(format string, args ...any)) (string, error) {
	release := func(ctx context.Context, scratch string) (string, error) {
		return download(ctx, releases.ExactVersion{}, scratch, progress)
	}
	return finder{release: release, source: buildSource}.find(ctx, progress)
}

// finder has the functions that get a new program, so that tests can replace them. Each function creates the program in
// a scratch directory, and returns its path.
type finder struct {
	release, source func(ctx context.Context, scratch string) (string, error)
}

func (f finder) find(ctx context.Context, progress func(format string, args ...any)) (string, error) {
	if path := os.Getenv("NOMAD_BIN"); path != "" {
		err := usable(ctx, path)
		if err != nil {
			return "", fmt.Errorf("failed to use NOMAD_BIN: %w", err)
		}
		return filepath.Abs(path)
	}

	if path, err := exec.LookPath("nomad"); err == nil {
		err := usable(ctx, path)
		if err == nil {
			return path, nil
		}
		progress("ignoring the nomad on PATH: %v", err)
	}

	name := fmt.Sprintf("nomad-%s-%s", Version, runtime.GOARCH)
	path, err := cache.Once(ctx, name, progress, func(scratch string) (string, error) {
		made, err := f.release(ctx, scratch)
		if err == nil || ctx.Err() != nil {
			return made, err
		}
		progress("%v; building Nomad %s from source instead, which takes minutes, once", err, Version)
		return f.source(ctx, scratch)
	})
	if err != nil {
		return "", fmt.Errorf("failed to get nomad %s (set NOMAD_BIN to use your own binary): %w", Version, err)
	}
	err = usable(ctx, path)
	if err != nil {
		return "", fmt.Errorf("failed to use the cached nomad: %w; delete that file to get a new one", err)
	}
	return path, nil
}

// usable checks that the lab can use the program. It runs the program to get its version.
func usable(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	v, err := product.Nomad.GetVersion(ctx, path)
	if err != nil {
		return fmt.Errorf("failed to run %s version: %w", path, err)
	}
	if line := fmt.Sprintf("%d.%d", v.Segments()[0], v.Segments()[1]); line != "1.11" && line != "2.0" {
		return fmt.Errorf("%s is Nomad %s, but the plugins support only Nomad 1.11 and 2.0", path, v)
	}
	return nil
}
