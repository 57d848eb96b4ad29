// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package remote runs remote tasks on clusters of real Nomad agents: a server, and clients that are drained, lost,
// cut off and started again.
package remote

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/lab/build"
)

var (
	scratch string // readable by everybody, with a short path: unix sockets are below it
	ask     string // see plugins/remote/cluster/ask
)

// remotePlugin builds the plugin.
var remotePlugin = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	root, err := build.Root(".")
	if err != nil {
		return "", err
	}
	paths, err := (build.Builder{Root: root}).All(ctx, "remote")
	if err != nil {
		return "", err
	}
	return paths[0], nil
})

func TestMain(m *testing.M) {
	flag.Parse()
	// most of a row is waiting
	if !slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.parallel") }) {
		flag.Set("test.parallel", "4")
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if scratch, err = os.MkdirTemp("/tmp", "ore"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(scratch)
	if err := os.Chmod(scratch, 0o755); err != nil {
		return 1, err
	}
	root, err := build.Root(".")
	if err != nil {
		return 1, err
	}
	ask = filepath.Join(scratch, "ask")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", ask, "./cluster/ask")
	cmd.Dir = filepath.Join(root, "plugins", "remote")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("failed to build the asker: %w\n%s", err, out)
	}
	return m.Run(), nil
}
