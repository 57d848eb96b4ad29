// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package volume is the plugin's other face: a dynamic host volume plugin of Nomad
// (client/hostvolumemanager/host_volume_plugin.go). Nomad runs the binary once for each
// call, with nothing but DHV_ variables in the environment, and again for every volume when
// an agent starts.
//
// Beside the volumes there is a record of each, which says where its dataset is. So a volume
// comes back whatever has become of the operator's file.
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

// Nomad ends a call after 60 s. What takes longer gets an answer before that.
var limit = 55 * time.Second

// at is called at steps of a call between which a process may be killed, for tests.
var at = func(string) {}

// Role is that of device.Plugin: a process with DHV_OPERATION in its environment answers one
// call.
func Role() bool {
	if _, set := os.LookupEnv("DHV_OPERATION"); !set {
		return false
	}
	os.Exit(answer(os.LookupEnv, os.Stdout, os.Stderr))
	return true
}

// answer writes JSON, and nothing else, to stdout. What an operator may want to know besides
// goes to stderr, which is in the agent's log.
func answer(env func(string) (string, bool), stdout, stderr io.Writer) (exit int) {
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
	case <-time.After(limit + 2*time.Second): // no context ends a system call of a file system that hangs
		o.err = errors.New("the file system does not answer: see whether its pool is in order")
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

// Volume is the answer to create.
type Volume struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}
