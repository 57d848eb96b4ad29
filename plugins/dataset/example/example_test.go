// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package example checks the operator's file and the volumes of the examples. The lab's tests run the jobs.
package example

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/hcl"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

func TestExampleVolumes_AreAllowedByTheExamplePolicy(t *testing.T) {
	path, err := filepath.Abs("dataset.hcl")
	must.NoError(t, err)
	f, err := policy.Load(path)
	must.NoError(t, err)
	files, err := filepath.Glob("*.volume.hcl")
	must.NoError(t, err)
	must.Len(t, 2, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		var v struct {
			Name       string
			Parameters map[string]string
		}
		must.NoError(t, hcl.Decode(&v, string(text)), must.Sprint(file))
		const id = "3b920a3a-c099-1720-ad6f-5e2d41c9e2fe"
		_, err = f.Volume(policy.Request{ID: id, Name: v.Name, Namespace: "default", Min: 32 << 20, Max: 64 << 20,
			Parameters: v.Parameters})
		test.NoError(t, err, test.Sprint(file))
	}
}
