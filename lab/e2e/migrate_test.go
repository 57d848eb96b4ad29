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
// author about each option that exec-lite does not have, and names the page. Nomad alone would say "Invalid label".
func TestMigrate_RenamedJobGetsOneSentence(t *testing.T) {
	t.Parallel()
	n := common(t)
	page, err := os.ReadFile("../../" + migratePage)
	must.NoError(t, err)
	rows := []struct{ name, config, want string }{
		{"raw-exec", `
command            = "true"
args               = ["x"]
work_dir           = "/"
oom_score_adj      = 1
denied_envvars     = ["AWS_*"]
cgroup_v2_override = "custom.slice"
cgroup_v1_override = [{ pids = "custom", memory = "custom" }]
`, `option "cgroup_v1_override", "cgroup_v2_override" of raw_exec: exec-lite keeps a task in the cgroup that Nomad made ` +
			`for it, with the limits of its resources block; "denied_envvars" of raw_exec: exec-lite has denied_envvars ` +
			`for all tasks of a node, in the agent's plugin block; a task starts its program with env -u NAME`},
		{"raw-exec-v2", `
command            = "true"
cgroup_v2_override = "custom.slice"
`, `option "cgroup_v2_override" of raw_exec: exec-lite keeps a task in the cgroup that Nomad made for it, with the ` +
			`limits of its resources block`},
		{"raw-exec-v1-block", `
command = "true"
cgroup_v1_override {
  pids = "custom"
}
`, `option "cgroup_v1_override" of raw_exec: exec-lite keeps a task in the cgroup that Nomad made for it, with the ` +
			`limits of its resources block`},
		{"exec", `
command  = "true"
pid_mode = "host"
ipc_mode = "private"
cap_add  = ["net_raw"]
cap_drop = ["all"]
work_dir = "/tmp"
`, `option "pid_mode", "ipc_mode" of exec: tasks of exec-lite see the processes and the IPC of the node; "cap_add", ` +
			`"cap_drop" of exec: tasks of exec-lite have the capabilities of their user; setpriv(1) starts a program with others`},
		{"docker", `
image    = "redis:7"
ports    = ["db"]
cap_drop = ["all"]
volumes  = ["local:/data"]
labels {
  a = "b"
}
logging {
  type = "journald"
  config {
    tag = "redis"
  }
}
mount {
  type   = "tmpfs"
  target = "/tmp"
  tmpfs_options {
    size = 100000
  }
}
`, `option "image" of docker: exec-lite runs a program of the node, or an artifact, and no container`},
	}
	allocs := make([]*alloc, len(rows))
	for i, r := range rows {
		text := `job "migrate-` + r.name + `" {
  type = "batch"
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "main" {
      driver = "exec-lite"
      config {` + r.config + `}
    }
  }
}`
		j, err := n.Client().Jobs().ParseHCL(text, true)
		must.NoError(t, err, must.Sprint(r.name))
		allocs[i] = n.submit(t, j)
	}
	for i, r := range rows {
		allocs[i].ended(t)
		_, st, err := allocs[i].info()
		must.NoError(t, err)
		var got []string
		for _, e := range st.Events {
			if e.Type == api.TaskDriverFailure || e.Type == api.TaskFailedValidation {
				got = append(got, e.DisplayMessage)
			}
		}
		test.Eq(t, []string{"rpc error: code = Unknown desc = " + r.want + " (docs/migrate.md)"}, got, test.Sprint(r.name))
		test.SliceEmpty(t, n.tasksOf(allocs[i].id), test.Sprintf("%s: state is left", r.name))
		if r.name == "raw-exec-v2" && len(got) == 1 {
			test.StrContains(t, string(page), "Driver Failure  "+got[0]+"\n", test.Sprint("the page shows another sentence"))
		}
	}
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
