// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// docker is why no example runs, or nil.
var docker error

// TestMain leaves the examples out if Docker does not answer, and from `go tool mage test`: an example can't skip
// itself.
func TestMain(m *testing.M) {
	flag.Parse()
	docker = agent.DockerAnswers(context.Background())
	if docker != nil || testing.Short() {
		flag.Set("test.skip", "^Example")
	}
	os.Exit(m.Run())
}

// TestExamples_NeedDocker reports that the examples were skipped.
func TestExamples_NeedDocker(t *testing.T) {
	testsupport.Long(t, "needs a container")
	if docker != nil {
		t.Skip(docker)
	}
}
