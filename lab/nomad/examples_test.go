// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad_test

import (
	"context"
	"fmt"
	"log"

	"github.com/testcontainers/testcontainers-go"

	"github.com/outrider-dev/outrider/lab/image"
	"github.com/outrider-dev/outrider/lab/nomad"
)

func ExampleRun() {
	ctx := context.Background()
	img, err := image.Ensure(ctx, "", nil)
	if err != nil {
		log.Print(err)
		return
	}
	program, err := nomad.Binary(ctx, nil)
	if err != nil {
		log.Print(err)
		return
	}

	ctr, err := nomad.Run(ctx, img,
		nomad.WithBinary(program.Path),
		nomad.WithPort(24646),
		nomad.WithConfigString(`plugin "raw_exec" { config { enabled = true } }`),
		testcontainers.WithWaitStrategy(nomad.NodeHealthy("raw_exec")),
	)
	defer func() {
		if err := testcontainers.TerminateContainer(ctr); err != nil {
			log.Print(err)
		}
	}()
	if err != nil {
		log.Print(err)
		return
	}

	client, err := ctr.Client()
	if err != nil {
		log.Print(err)
		return
	}
	nodes, _, err := client.Nodes().List(nil)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(ctr.Address(), len(nodes), nodes[0].Status)

	// Output:
	// http://127.0.0.1:24646 1 ready
}

func ExampleContainer_KillAgent() {
	ctx := context.Background()
	program, err := nomad.Binary(ctx, nil)
	if err != nil {
		log.Print(err)
		return
	}
	ctr, err := nomad.Run(ctx, image.Name, nomad.WithBinary(program.Path), nomad.WithPort(24647),
		testcontainers.WithWaitStrategy(nomad.NodeHealthy()))
	defer func() {
		if err := testcontainers.TerminateContainer(ctr); err != nil {
			log.Print(err)
		}
	}()
	if err != nil {
		log.Print(err)
		return
	}

	before, err := ctr.AgentPID(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	if err := ctr.KillAgent(ctx); err != nil { // the container and the tasks in it go on
		log.Print(err)
		return
	}
	if err := ctr.StartAgent(ctx); err != nil {
		log.Print(err)
		return
	}
	after, err := ctr.AgentPID(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println("another process:", before != after)

	// Output:
	// another process: true
}
