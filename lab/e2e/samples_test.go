// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestSamples_RunUnchanged(t *testing.T) {
	t.Parallel()
	needRootAgent(t) // the job has a user
	n := commonNode.get(t)
	text, err := os.ReadFile("../../plugins/exec-lite/example/service.nomad.hcl")
	must.NoError(t, err)
	a := n.submitHCL(t, string(text), func(j *api.Job) {
		r, _, err := n.Client().Jobs().Validate(j, nil)
		if err != nil || r.Error != "" || r.Warnings != "" {
			t.Errorf("Nomad reports %v, the error %q and the warning %q", err, r.Error, r.Warnings)
		}
		j.TaskGroups[0].Tasks[0].KillTimeout = new(20 * time.Second) // for a busy machine
	})
	a.running(t)
	a.says(t, "stdout", ":") // the time
	a.stop(t)
	out := a.output(t, "stdout")
	test.Eq(t, "exit 0", a.outcome())
	test.StrHasSuffix(t, "stopped in good order\n", out)
}

func TestMigrate_ExampleHasItsCapability(t *testing.T) {
	t.Parallel()
	needRootAgent(t) // which can give capabilities
	a := commonNode.get(t).submitHCL(t, jobFiles(readFences(t, "docs/guides/migrate.md"))["caps.nomad.hcl"])
	must.Eq(t, "exit 0", a.ended(t), must.Sprint(a.story()))
	test.Eq(t, "CapEff:\t0000000000000400\n", a.output(t, "stdout")) // CAP_NET_BIND_SERVICE alone
}
