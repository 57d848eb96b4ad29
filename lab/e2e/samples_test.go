// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestSamples_RunAsTheyStand(t *testing.T) {
	t.Parallel()
	needRootAgent(t) // for another user
	n := common(t)
	for path, want := range map[string]string{
		"docs/exec-lite.md":                           "stopping\n",
		"plugins/exec-lite/example/service.nomad.hcl": "stopped in good order\n",
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			b, err := os.ReadFile(filepath.Join("../..", path))
			must.NoError(t, err)
			text := string(b)
			if filepath.Ext(path) == ".md" {
				text = jobFiles(readFences(t, path))["web.nomad.hcl"]
			}
			j, err := n.Client().Jobs().ParseHCL(text, true)
			must.NoError(t, err)
			r, _, err := n.Client().Jobs().Validate(j, nil)
			if err != nil || r.Error != "" || r.Warnings != "" {
				t.Errorf("Nomad says %v, %q, warns %q", err, r.Error, r.Warnings)
			}
			j.TaskGroups[0].Tasks[0].KillTimeout = new(20 * time.Second) // for a busy machine
			a := n.submit(t, j)
			a.task = j.TaskGroups[0].Tasks[0].Name
			a.running(t)
			a.says(t, "stdout", ":") // the time
			a.stop(t)
			if out := a.output(t, "stdout"); a.outcome() != "exit 0" || !strings.HasSuffix(out, want) {
				t.Errorf("it ended with %s, having said %q", a.outcome(), out)
			}
		})
	}
}
