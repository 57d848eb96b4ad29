// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// docker is why no example runs, or nil.
var docker error

// TestMain leaves the examples out if Docker does not answer: an example cannot skip itself.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true") // its image is in a registry
	if docker = ping(); docker != nil {
		flag.Set("test.skip", "^Example")
	}
	os.Exit(m.Run())
}

func ping() error {
	cli, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = cli.Ping(ctx, client.PingOptions{})
	return err
}

// TestExamples_NeedDocker reports that the examples were skipped.
func TestExamples_NeedDocker(t *testing.T) {
	if docker != nil {
		t.Skip("Docker does not answer: ", docker)
	}
}
