// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// An agent must also run in an editor's dev container, which therefore needs all rights of the lab's container.
func TestDevcontainer_HasTheSameRightsAsTheLabContainer(t *testing.T) {
	dir := "../../.devcontainer"
	text, err := os.ReadFile(filepath.Join(dir, "devcontainer.json"))
	must.NoError(t, err)
	var got struct {
		Build       struct{ Dockerfile, Context, Target string }
		CapAdd      []string
		SecurityOpt []string
		RunArgs     []string
	}
	comments := regexp.MustCompile(`(?m)(^|\s)//.*$`)
	must.NoError(t, json.Unmarshal(comments.ReplaceAll(text, nil), &got))

	var want container.HostConfig
	rights[1].apply(&want)
	test.SliceContainsAll(t, got.CapAdd, want.CapAdd)
	// systempaths=unconfined makes docker send empty MaskedPaths and ReadonlyPaths
	test.SliceContainsAll(t, got.SecurityOpt, append(want.SecurityOpt, "systempaths=unconfined"))
	test.SliceContains(t, got.RunArgs, "--device-cgroup-rule="+want.Resources.DeviceCgroupRules[0])

	dockerfile, err := os.ReadFile(filepath.Join(dir, got.Build.Dockerfile))
	must.NoError(t, err)
	test.StrContains(t, string(dockerfile), "\nFROM lab AS "+got.Build.Target+"\n")
	test.Eq(t, filepath.Dir(got.Build.Dockerfile), got.Build.Context)
}
