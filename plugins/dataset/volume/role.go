// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package volume is the plugin's role as a dynamic host volume plugin of Nomad
// (client/hostvolumemanager/host_volume_plugin.go). Nomad runs the binary once for each call, with only
// DHV_ variables in the environment, and calls create again for every volume when an agent starts.
//
// A record next to the volumes has the location of each volume's dataset, so volumes are restored even
// if the operator's file has changed or is missing.
package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/plugin"
)

// limit is the timeout of a call. It is shorter than Nomad's, 60 s, so the call can return an error.
var limit = 55 * time.Second

// at is a test hook, called at the steps where a test may kill the process.
var at = func(string) {}

// Role implements device.Plugin.Roles: a process with DHV_OPERATION in its environment handles one call
// and exits.
func Role() bool {
	if _, set := os.LookupEnv("DHV_OPERATION"); !set {
		return false
	}
	os.Exit(Answer(os.LookupEnv, os.Stdout, os.Stderr))
	return true
}

// Answer handles the call that the variables of env describe, and returns the exit code. It writes only JSON to
// stdout. Messages for the operator go to stderr, which Nomad writes to the agent's log.
func Answer(env func(string) (string, bool), stdout, stderr io.Writer) (exit int) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	type outcome struct {
		result any
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := run(ctx, env, stderr)
		done <- outcome{result, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-time.After(limit + 2*time.Second): // the context can't end a system call that hangs
		o.err = errors.New("the file system hangs: check its pool with \"zpool status\"")
	}
	if o.err != nil {
		o.result, exit = map[string]string{"error": plain.Line(o.err.Error(), 0)}, 1
	}
	out := json.NewEncoder(stdout)
	out.SetEscapeHTML(false)
	if err := out.Encode(o.result); err != nil {
		fmt.Fprintf(stderr, "failed to answer: %v\n", err)
		return 1
	}
	return exit
}

func run(ctx context.Context, env func(string) (string, bool), stderr io.Writer) (any, error) {
	switch op, _ := env("DHV_OPERATION"); op {
	case "fingerprint":
		return map[string]string{"version": plugin.Version()}, nil
	case "create":
		c, err := newCall(env, stderr)
		if err != nil {
			return nil, err
		}
		return c.create(ctx)
	case "delete":
		c, err := newCall(env, stderr)
		if err != nil {
			return nil, err
		}
		return struct{}{}, c.delete(ctx)
	default:
		return nil, fmt.Errorf("operation %q is not known: use fingerprint, create or delete", op)
	}
}

// Volume is the result of create.
type Volume struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}
