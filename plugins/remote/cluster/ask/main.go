// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command ask asks Nomad's API all questions of package cluster once, for the tests on real agents of lab/e2e. It
// reads a Question from its standard input and writes an Answer.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/cluster"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// Question is what is asked.
type Question struct {
	Options cluster.Options
	Asker   engine.Asker
	Stop    engine.StopOptions
	Record  endpoint.Record
	Only    bool // for the decision
}

// Answer has the answers.
type Answer struct {
	Decision engine.Decision
	Took     time.Duration // of the decision
	Owner    engine.Alloc  // the allocation of the record's
	Orphan   bool
	Why      string // of Orphan
	Sight    cluster.Sight
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var q Question
	if err := json.NewDecoder(os.Stdin).Decode(&q); err != nil {
		return fmt.Errorf("failed to read the question: %w", err)
	}
	c, ctx := cluster.New(q.Options), context.Background()
	var a Answer
	start := time.Now()
	a.Decision = c.Why(ctx, q.Asker, q.Stop)
	a.Took = time.Since(start)
	if !q.Only {
		a.Owner = c.Alloc(ctx, q.Asker, q.Record.Owner)
		a.Orphan, a.Why = c.Orphan(ctx, &q.Record, func(string) bool { return false })
		a.Sight = c.Sight(ctx)
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}
