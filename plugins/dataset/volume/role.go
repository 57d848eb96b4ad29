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
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/plugin"
)

// limit is the timeout of a call. It is shorter than Nomad's, 60 s, so the call can return an error.
var limit = 55 * time.Second

// at and late are test hooks: at may kill the process at a step, and late fires when a call hangs beyond its limit.
var (
	at   = func(string) {}
	late = func() <-chan time.Time { return time.After(limit + 2*time.Second) }
)

// Role implements device.Plugin.Roles: a process with DHV_OPERATION in its environment handles one call and exits.
func Role() bool {
	if _, set := os.LookupEnv("DHV_OPERATION"); !set {
		return false
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a write to a closed stdout returns an error: see call.make
	os.Exit(Answer(os.LookupEnv, os.Stdout, os.Stderr))
	return true
}

// Answer handles the call that the variables of env describe, and returns the exit code. It writes only JSON to
// stdout. Messages for the operator go to stderr, which Nomad writes to the agent's log.
func Answer(env func(string) (string, bool), stdout, stderr io.Writer) (exit int) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out := json.NewEncoder(stdout)
	out.SetEscapeHTML(false)
	var answered atomic.Bool // set by the first to answer: the call, or its timeout
	answer := func(result any, finish ...func() error) error {
		if !answered.CompareAndSwap(false, true) {
			return errors.New("the result was not sent, because the call had already failed")
		}
		for _, do := range finish {
			if err := do(); err != nil {
				return err
			}
		}
		return out.Encode(result)
	}
	done := make(chan error, 1)
	go func() { done <- run(ctx, env, answer, stderr) }()
	var err error
	select {
	case err = <-done:
	case <-late(): // a system call that hangs ignores the context
		err = errors.New("the file system hangs: check its pool with \"zpool status\"")
		if !answered.CompareAndSwap(false, true) {
			err = <-done // the call is already answering; if it hangs, Nomad gives up after 60 s
		}
	}
	if err == nil {
		return 0
	}
	_ = out.Encode(map[string]string{"error": plain.Line(err.Error(), 0)}) // fails only if nobody reads stdout
	return 1
}

// answer calls the finish functions, and then writes the result of a call. It fails if the call has already timed out.
type answer func(result any, finish ...func() error) error

// run handles a call. It passes its result to answer, and returns the error of answer.
func run(ctx context.Context, env func(string) (string, bool), answer answer, stderr io.Writer) error {
	op, _ := env("DHV_OPERATION")
	switch op {
	case "fingerprint":
		return answer(map[string]string{"version": plugin.Version()})
	case "create", "delete":
	default:
		return fmt.Errorf("operation %q is not known: use fingerprint, create or delete", op)
	}
	c, err := newCall(env, answer, stderr)
	if err != nil {
		return err
	}
	if op == "create" {
		return c.create(ctx)
	}
	if err := c.delete(ctx); err != nil {
		return err
	}
	return answer(struct{}{})
}

// Volume is the result of create.
type Volume struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}
