// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestSamples_RunUnchanged(t *testing.T) {
	t.Parallel()
	needRootAgent(t) // the jobs have a user
	n := commonNode.get(t)
	for path, want := range map[string]string{
		"docs/plugins/exec-lite.md":                   "stopping\n",
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
			a := n.submitHCL(t, text, func(j *api.Job) {
				r, _, err := n.Client().Jobs().Validate(j, nil)
				if err != nil || r.Error != "" || r.Warnings != "" {
					t.Errorf("Nomad reports %v, the error %q and the warning %q", err, r.Error, r.Warnings)
				}
				j.TaskGroups[0].Tasks[0].KillTimeout = new(20 * time.Second) // for a busy machine
			})
			a.running(t)
			a.says(t, "stdout", ":") // the time
			a.stop(t)
			if out := a.output(t, "stdout"); a.outcome() != "exit 0" || !strings.HasSuffix(out, want) {
				t.Errorf("got %s, %q", a.outcome(), out)
			}
		})
	}
}

func TestMigrate_ExampleHasItsCapability(t *testing.T) {
	t.Parallel()
	needRootAgent(t) // which can give capabilities
	a := commonNode.get(t).submitHCL(t, jobFiles(readFences(t, "docs/guides/migrate.md"))["caps.nomad.hcl"])
	must.Eq(t, "exit 0", a.ended(t), must.Sprint(a.story()))
	test.Eq(t, "CapEff:\t0000000000000400\n", a.output(t, "stdout")) // CAP_NET_BIND_SERVICE alone
}
