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

// at is a test hook, called at the steps where a test may kill the process.
var at = func(string) {}

// Role implements device.Plugin.Roles: a process with DHV_OPERATION in its environment handles one call
// and exits.
func Role() bool {
	if _, set := os.LookupEnv("DHV_OPERATION"); !set {
		return false
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // an answer that nobody reads is an error, see call.make
	os.Exit(Answer(os.LookupEnv, os.Stdout, os.Stderr))
	return true
}

// Answer handles the call that the variables of env describe, and returns the exit code. It writes only JSON to
// stdout. Messages for the operator go to stderr, which Nomad writes to the agent's log.
func Answer(env func(string) (string, bool), stdout, stderr io.Writer) (exit int) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answer := answerOnce(stdout)
	fail := func(text string) error { return answer(map[string]string{"error": plain.Line(text, 0)}) }
	done := make(chan error, 1)
	go func() { done <- run(ctx, env, answer, stderr) }()
	var err error
	select {
	case err = <-done:
	case <-time.After(limit + 2*time.Second): // the context can't end a system call that hangs
		if !errors.Is(fail("the file system hangs: check its pool with \"zpool status\""), errAnswered) {
			return 1
		}
		err = <-done // Nomad ends the wait, after 60 s
	}
	if err == nil {
		return 0
	}
	_ = fail(err.Error()) // an error if nobody reads it
	return 1
}

var errAnswered = errors.New("the call has been answered already")

// answerOnce returns a function that writes only its first value, as JSON: a call that hangs may wake up after limit.
func answerOnce(w io.Writer) func(any) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	var answered atomic.Bool
	return func(value any) error {
		if !answered.CompareAndSwap(false, true) {
			return errAnswered
		}
		return out.Encode(value)
	}
}

// run handles a call. It passes its result to answer, and returns the error of answer.
func run(ctx context.Context, env func(string) (string, bool), answer func(any) error, stderr io.Writer) error {
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
