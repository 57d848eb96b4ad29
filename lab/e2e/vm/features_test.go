// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/features"
)

// TestFeatures_WorkOnCgroupV2 runs, for each feature, a job that uses it and a job that does not.
func TestFeatures_WorkOnCgroupV2(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel()
	h := newHost(t)
	h.boot()
	h.shell("touch " + strings.Join(features.Files, " "))
	c := h.runAgent(map[string]agent.Plugin{
		"exec-lite": {Config: "state_dir = \"${state_dir}\"\n" + features.Plugin},
	})
	for _, f := range features.Cases() {
		id := runs(t, c, f.Job, api.AllocClientStatusComplete)
		test.NoError(t, testsupport.Poll(5*time.Minute, func() error {
			if got := h.output(id); got != f.Want {
				return fmt.Errorf("%s: the task has printed %q, want %q", f.Name, got, f.Want)
			}
			return nil
		}))
	}
	h.run(nil, h.ctl, "close", agentDir)
}
