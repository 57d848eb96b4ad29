// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

const migratePage = "docs/migrate.md"

// TestMigrate_RenamedJobGetsOneSentence: a job of Nomad's own drivers, of which only the driver was renamed, tells its
// author about an option that exec-lite does not have, and names the page. Nomad alone would say "Invalid label". The
// sentences of all options are plugins/exec-lite's.
func TestMigrate_RenamedJobGetsOneSentence(t *testing.T) {
	t.Parallel()
	n := common(t)
	page, err := os.ReadFile("../../" + migratePage)
	must.NoError(t, err)
	const want = `option "cgroup_v2_override" of raw_exec: exec-lite keeps a task in the cgroup that Nomad made for it, ` +
		`with the limits of its resources block (docs/migrate.md)`
	j := job(t, conf{"command": "true", "cgroup_v2_override": "custom.slice"})
	a := n.submit(t, j)
	a.ended(t)
	_, st, err := a.info()
	must.NoError(t, err)
	var got []string
	for _, e := range st.Events {
		if e.Type == api.TaskDriverFailure || e.Type == api.TaskFailedValidation {
			got = append(got, e.DisplayMessage)
		}
	}
	must.Eq(t, []string{"rpc error: code = Unknown desc = " + want}, got)
	test.SliceEmpty(t, n.tasksOf(a.id), test.Sprint("state is left"))
	test.StrContains(t, string(page), "Driver Failure  "+got[0]+"\n", test.Sprint("the page shows another sentence"))
}

// TestMigrate_ExamplesDoWhatTheyReplace runs the page's jobs that show what to write instead of an option.
func TestMigrate_ExamplesDoWhatTheyReplace(t *testing.T) {
	t.Parallel()
	needRootAgent(t) // for setpriv
	n := common(t)
	jobs := jobFiles(readFences(t, migratePage))
	run := func(name string, edit func(task *api.Task)) string {
		j, err := n.Client().Jobs().ParseHCL(jobs[name+".nomad.hcl"], true)
		must.NoError(t, err)
		edit(j.TaskGroups[0].Tasks[0])
		a := n.submit(t, j)
		a.task = name
		must.Eq(t, "exit 0", a.ended(t), must.Sprint(a.story()))
		return a.output(t, "stdout")
	}
	out := run("report", func(task *api.Task) {
		task.Env = map[string]string{"HTTP_PROXY": "denied", "HTTPS_PROXY": "denied", "OTHER": "kept"}
	})
	test.StrNotContains(t, out, "denied")
	test.StrContains(t, out, "OTHER=kept")
	out = run("caps", func(*api.Task) {})
	test.Eq(t, "CapEff:\t0000000000000400", strings.TrimSpace(out)) // CAP_NET_BIND_SERVICE alone
}
