// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Only exec-lite's page is checked, because the pages of the other drivers on the local engine refer to it.
func TestCapabilities_MatchThePage(t *testing.T) {
	testsupport.NeedRoot(t)
	caps, err := start(t, nil).Capabilities()
	must.NoError(t, err)
	var modes []string
	for _, mode := range caps.NetIsolationModes {
		modes = append(modes, string(mode))
	}
	must.Eq(t, drivers.MountConfigSupportAll, caps.MountConfigs)
	rows := []string{
		fmt.Sprintf("| `nomad alloc signal` | %t |", caps.SendSignals),
		fmt.Sprintf("| `nomad alloc exec` | %t |", caps.Exec),
		fmt.Sprintf("| filesystem isolation | %s", caps.FSIsolation),
		fmt.Sprintf("| network isolation | %s |", strings.Join(modes, ", ")),
		"| volume mounting | all",
		fmt.Sprintf("| dynamic workload users | %t", caps.DynamicWorkloadUsers),
	}
	text, err := os.ReadFile("../../../docs/plugins/exec-lite.md")
	must.NoError(t, err)
	for _, row := range rows {
		test.StrContains(t, string(text), "\n"+row)
	}
}
