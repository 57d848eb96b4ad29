// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package features has a table of options of raw_exec, exec and exec2, with jobs that prove that exec-lite has them.
// The tests of lab/e2e run the jobs on this machine, the tests of lab/e2e/vm in a VM with cgroup v2.
package features

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// Config is the config block of a task.
type Config = map[string]any

// Feature is an option of Nomad's drivers. A shell task runs Script. With Config and Edit, it prints the line Want;
// without them, it prints the line Host, if Host is not empty.
type Feature struct {
	Name, Of   string
	Config     Config
	Edit       func(*api.Job, *api.Task) // may be nil
	Script     string
	Want, Host string
}

// Plugin is the driver's configuration that the jobs need.
const Plugin = `allow_caps = ["net_bind_service"]`

// Files are paths that must exist on the host.
var Files = []string{"/dev/shm/outrider-e2e", "/tmp/outrider-e2e"}

func asNobody(_ *api.Job, task *api.Task) { task.User = "nobody" }

func dns(j *api.Job, _ *api.Task) {
	j.TaskGroups[0].Networks = []*api.NetworkResource{{DNS: &api.DNSConfig{Servers: []string{"10.1.2.3"}}}}
}

// Case is a job with or without a feature, and the output that its task must print.
type Case struct {
	Name, Want string
	Job        *api.Job
}

// Cases returns the jobs of the table.
func Cases() (cases []Case) {
	for i, f := range all {
		shell := nomadtest.Shell(f.Script + "\nexit 0")
		with, task := nomadtest.Job(fmt.Sprint("with-", i), "exec-lite", shell)
		for name, value := range f.Config {
			task.SetConfig(name, value)
		}
		if f.Edit != nil {
			f.Edit(with, task)
		}
		cases = append(cases, Case{Name: f.Name, Want: f.Want, Job: with})
		if f.Host != "" {
			without, _ := nomadtest.Job(fmt.Sprint("without-", i), "exec-lite", shell)
			cases = append(cases, Case{Name: "without " + f.Name, Want: f.Host, Job: without})
		}
	}
	return cases
}

// all is the table of features.
var all = []Feature{
	{Name: "work_dir", Of: "raw_exec, exec", Config: Config{"work_dir": "/usr"}, Script: "pwd", Want: "/usr"},
	{Name: "denied_envvars", Of: "raw_exec", Config: Config{"denied_envvars": []string{"NOMAD_JOB_*"}},
		Script: "echo $NOMAD_JOB_NAME | wc -w", Want: "0", Host: "1"},
	{Name: "oom_score_adj", Of: "raw_exec, exec2", Config: Config{"oom_score_adj": 500},
		Script: "cat /proc/self/oom_score_adj", Want: "500", Host: "0"},
	{Name: "user", Of: "all", Edit: asNobody, Script: "id -un", Want: "nobody", Host: "root"},
	{Name: "cap_add", Of: "exec", Config: Config{"cap_add": []string{"net_bind_service"}}, Edit: asNobody,
		Script: "grep -c 'CapEff.*400$' /proc/self/status", Want: "1", Host: "0"},
	{Name: "cap_drop", Of: "exec", Config: Config{"cap_drop": []string{"all"}},
		Script: "chown nobody . 2>/dev/null && echo changed || echo denied", Want: "denied", Host: "changed"},
	{Name: "pid_mode", Of: "exec, exec2", Config: Config{"isolate": []string{"pid"}},
		Script: "ls /proc | grep -c '^[0-9]*$' | sed 's/^[1-9]$/few/; s/^[0-9].*/many/'", Want: "few", Host: "many"},
	{Name: "ipc_mode", Of: "exec, exec2", Config: Config{"isolate": []string{"ipc"}},
		Script: "ls /dev/shm | grep outrider-e2e || echo none", Want: "none", Host: "outrider-e2e"},
	{Name: "private /tmp", Of: "exec, exec2", Config: Config{"isolate": []string{"tmp"}},
		Script: "ls -d /tmp/outrider-e2e 2>/dev/null || echo none", Want: "none", Host: "/tmp/outrider-e2e"},
	{Name: "no_new_privs", Of: "exec2", Config: Config{"no_new_privs": true}, Edit: asNobody,
		Script: "sed -n 's/NoNewPrivs:.//p' /proc/self/status", Want: "1", Host: "0"},
	{Name: "dns", Of: "exec", Edit: dns,
		Script: "grep nameserver /etc/resolv.conf", Want: "nameserver 10.1.2.3"},
	{Name: "pids_limit", Of: "none of them", Config: Config{"pids_limit": 5},
		Script: "(for i in 1 2 3 4 5 6 7 8; do sleep 1 & done) 2>/dev/null || echo limited", Want: "limited"},
}
