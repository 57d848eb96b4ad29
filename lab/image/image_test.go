// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package image_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/image"
)

func needDocker(t *testing.T) {
	t.Helper()
	testsupport.Long(t, "builds a container's image")
	if err := agent.DockerAnswers(t.Context()); err != nil {
		t.Skip(err)
	}
}

func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	must.NoError(t, err, must.Sprintf("docker %s: %s", strings.Join(args, " "), out))
	return strings.TrimSpace(string(out))
}

func TestBuild_MakesTheImageOfTheDockerfile(t *testing.T) {
	needDocker(t)
	must.NoError(t, image.Build(t.Context(), t.Logf))
	test.True(t, image.Exists(t.Context()))
	docker(t, "run", "--rm", "--network=none", image.Name, "test", "-x", "/bin/ip", "-a", "-x", "/usr/bin/python3")

	progress := func(format string, args ...any) { t.Errorf("an image that is there is made again: "+format, args...) }
	for _, ref := range []string{"", image.Name} {
		got, err := image.Ensure(t.Context(), ref, progress)
		must.NoError(t, err)
		test.Eq(t, image.Name, got)
	}
}

func TestEnsure_SaysWhichImageThereIsNot(t *testing.T) {
	needDocker(t)
	_, err := image.Ensure(t.Context(), "registry.invalid/mine:1", nil)
	must.ErrorContains(t, err, "failed to pull the image registry.invalid/mine:1: ")
}
