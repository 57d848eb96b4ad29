// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command vmctl controls a Nomad agent in a VM of package vm. The host runs vmctl in the VM:
//
//	vmctl run|start|stop|close DIR
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
)

func main() {
	err := errors.New("usage: vmctl run|start|stop|close DIR")
	if len(os.Args) == 3 {
		err = runAgent(os.Args[1], os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vmctl:", err)
		os.Exit(1)
	}
}

// runAgent runs one operation on the agent in a directory. `run` reads the agent's options as JSON from stdin. run and
// start print the agent's address once it is up; the agent keeps running.
func runAgent(verb, dir string) error {
	// on a busy emulated machine, the plugins may need several attempts to start, which take minutes
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	if verb == "run" {
		var o agent.Options
		if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
			return fmt.Errorf("failed to read the agent's options: %w", err)
		}
		o.Runtime, o.Dir = agent.Host, dir
		a, err := agent.Run(ctx, o)
		if err != nil {
			return err
		}
		fmt.Println(a.Address())
		return nil
	}
	a, err := agent.Open(ctx, dir)
	if err != nil {
		return err
	}
	switch verb {
	case "start":
		if err := a.Start(ctx); err != nil {
			return err
		}
		if err := agent.WaitHealthy(ctx, a); err != nil {
			return err
		}
		fmt.Println(a.Address())
		return nil
	case "stop":
		return a.Stop(ctx)
	case "close":
		if err := a.Close(ctx); err != nil {
			return err
		}
		left, err := agent.Processes(a.Info().Dir)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("the agent left processes behind: %v", left)
		}
		return err
	}
	return errors.New("unknown command: want run, start, stop or close")
}
