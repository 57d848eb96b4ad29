// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestLimits_CPUHardLimitIsTheTasksShareOfTheNode(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	if a.share == "" {
		t.Skip("tasks get no cgroup here")
	}
	script := strings.ReplaceAll(`
while IFS=: read -r _ names path; do
  case ",$names," in
  *,cpu,*) cat CPU$path/cpu.cfs_quota_us ;;
  ,,) cat ROOT$path/cpu.max 2>/dev/null ;;
  esac
done </proc/self/cgroup`, "CPU", a.cgroup.Mounts["cpu"])
	script = strings.ReplaceAll(script, "ROOT", a.cgroup.Root)
	quarter := func(c *drivers.TaskConfig) { c.Resources.LinuxResources.PercentTicks = 0.25 }
	for options, want := range map[string]string{
		"cpu_hard_limit = true": strconv.Itoa(runtime.NumCPU() * 25_000), "": "-1",
	} {
		out, _ := a.result(a.shell(script, options, quarter))
		quota := strings.Replace(strings.Fields(out)[0], "max", "-1", 1)
		test.Eq(t, want, quota, test.Sprintf("%q: %s", options, out))
	}
}
