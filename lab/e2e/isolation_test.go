// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// feature is an option of raw_exec, exec or exec2, with a job that proves it. The script prints one line; host is what
// it prints without the option.
type feature struct {
	name, of   string
	config     conf
	edit       func(*api.Job, *api.Task)
	script     string
	want, host string
}

func withNetwork(r *api.NetworkResource) func(*api.Job, *api.Task) {
	return func(j *api.Job, _ *api.Task) { j.TaskGroups[0].Networks = []*api.NetworkResource{r} }
}

var features = []feature{
	{name: "work_dir", of: "raw_exec, exec", config: conf{"work_dir": "/usr"}, script: "pwd", want: "/usr"},
	{name: "denied_envvars", of: "raw_exec", config: conf{"denied_envvars": []string{"NOMAD_JOB_*"}},
		script: "echo $NOMAD_JOB_NAME | wc -w", want: "0", host: "1"},
	{name: "oom_score_adj", of: "raw_exec, exec2", config: conf{"oom_score_adj": 500},
		script: "cat /proc/self/oom_score_adj", want: "500", host: "0"},
	{name: "user", of: "all", edit: asNobody, script: "id -un", want: "nobody", host: "root"},
	{name: "cap_add", of: "exec", config: conf{"cap_add": []string{"net_bind_service"}}, edit: asNobody,
		script: "grep -c 'CapEff.*400$' /proc/self/status", want: "1", host: "0"},
	{name: "cap_drop", of: "exec", config: conf{"cap_drop": []string{"all"}},
		script: "chown nobody . 2>/dev/null && echo changed || echo denied", want: "denied", host: "changed"},
	{name: "pid_mode", of: "exec, exec2", config: conf{"isolate": []string{"pid"}},
		script: "ls /proc | grep -c '^[0-9]*$' | sed 's/^[1-9]$/few/; s/^[0-9].*/many/'", want: "few", host: "many"},
	{name: "ipc_mode", of: "exec, exec2", config: conf{"isolate": []string{"ipc"}},
		script: "ls /dev/shm | grep outrider-e2e || echo none", want: "none", host: "outrider-e2e"},
	{name: "private /tmp", of: "exec, exec2", config: conf{"isolate": []string{"tmp"}},
		script: "ls -d /tmp/outrider-e2e 2>/dev/null || echo none", want: "none", host: "/tmp/outrider-e2e"},
	{name: "no_new_privs", of: "exec2", config: conf{"no_new_privs": true}, edit: asNobody,
		script: "sed -n 's/NoNewPrivs:.//p' /proc/self/status", want: "1", host: "0"},
	{name: "dns", of: "exec", edit: withNetwork(&api.NetworkResource{DNS: &api.DNSConfig{Servers: []string{"10.1.2.3"}}}),
		script: "grep nameserver /etc/resolv.conf", want: "nameserver 10.1.2.3"},
	{name: "pids_limit", of: "none of them", config: conf{"pids_limit": 5},
		script: "(for i in 1 2 3 4 5 6 7 8; do sleep 1 & done) 2>/dev/null || echo limited", want: "limited"},
}

// TestFeatures_OfNomadsDriversWork runs a job for each feature, and one without it, on a node and, on cgroup v2, in a
// virtual machine (lab/e2e/vm).
func TestFeatures_OfNomadsDriversWork(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t)
	must.NoError(t, os.WriteFile("/dev/shm/outrider-e2e", nil, 0o644)) //nolint:gosec // for any user
	must.NoError(t, os.WriteFile("/tmp/outrider-e2e", nil, 0o644))     //nolint:gosec // for any user
	t.Cleanup(func() { os.Remove("/dev/shm/outrider-e2e"); os.Remove("/tmp/outrider-e2e") })
	n := newNode(t, nodeOptions{plugin: "allow_caps = [\"net_bind_service\"]\n"})
	for _, f := range features {
		t.Run(f.name, func(t *testing.T) {
			var edit []func(*api.Job, *api.Task)
			if f.edit != nil {
				edit = append(edit, f.edit)
			}
			a := n.submit(t, job(t, sh(f.script).with(f.config), edit...))
			test.StrHasPrefix(t, "exit ", a.ended(t), test.Sprint(a.story()))
			test.Eq(t, f.want, strings.TrimSpace(a.output(t, "stdout")), test.Sprint(a.output(t, "stderr")))
			if f.host == "" {
				return
			}
			plain := n.submit(t, job(t, sh(f.script)))
			plain.ended(t)
			test.Eq(t, f.host, strings.TrimSpace(plain.output(t, "stdout")), test.Sprint("without ", f.name))
		})
	}
}

// TestFeatures_SignalsReachATaskWithItsOwnProcessIDs shows what differs from exec2 0.1.2 on purpose: there, a SIGHUP
// ends the task.
func TestFeatures_SignalsReachATaskWithItsOwnProcessIDs(t *testing.T) {
	t.Parallel()
	n := commonNode.get(t)
	a := n.start(t, sh("trap 'echo got HUP' HUP; trap 'exit 0' INT; echo ready; while :; do sleep 0.01; done").
		with(conf{"isolate": []string{"pid"}}))
	a.says(t, "stdout", "ready")
	must.NoError(t, n.Client().Allocations().Signal(a.stub(t), nil, "main", "SIGHUP"))
	a.says(t, "stdout", "got HUP")
	a.stop(t)
	test.Eq(t, "exit 0", a.outcome())
}

func TestFeatures_DynamicUserStaysAfterARestartOfTheAgent(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t)
	n := newNode(t, nodeOptions{plugin: "dynamic_users = true\n"})
	a := n.start(t, sh("id -u >>$NOMAD_TASK_DIR/users; cat $NOMAD_TASK_DIR/users; exec sleep 1000"))
	a.says(t, "stdout", "\n")
	user := strings.TrimSpace(a.output(t, "stdout"))
	id, err := strconv.Atoi(user)
	must.NoError(t, err)
	test.Between(t, 80000, id, 89999)
	n.restart(t)
	must.NoError(t, n.Client().Allocations().Restart(a.stub(t), "main", nil))
	a.says(t, "stdout", user+"\n"+user+"\n"+user+"\n") // of the first run, then both
	a.stop(t)
}

// TestFeatures_EscapesAreDenied attacks a task and the host from a task and from a session in it, with all isolation.
// Some of the attacks succeed without.
func TestFeatures_EscapesAreDenied(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t)
	if landlock.ABI() < landlock.Complete {
		t.Skip("this kernel's Landlock can't truncate")
	}
	n := newNode(t, nodeOptions{plugin: `
		unveil = "strict"
		isolate = ["tmp", "ipc", "pid"]
		seccomp = "default"
		dynamic_users = true
		denied_host_uids = "0"
	`})
	isolated := attack(t, n)
	plain := attack(t, commonNode.get(t), asNobody)
	for attempt, works := range map[string]bool{
		"read another task's file": true, "read it by ..": true, "read it by a link": true, "change it": true,
		"signal another task": true, "signal every process": false, "read another task's maps": true,
		"list the host's files": true, "enter a user namespace": true, "enter the host's namespaces": false,
		"create a device node": false, "mount": false, "raise a hard limit": false, "see the host's /tmp": true,
	} {
		test.Eq(t, works, plain[attempt], test.Sprint(attempt, " without isolation"))
		_, tried := isolated[attempt]
		test.True(t, tried, test.Sprint(attempt))
	}
	for attempt, succeeded := range isolated {
		test.False(t, succeeded, test.Sprint(attempt))
	}
	for _, user := range []string{"root", "0", "00", "root:nogroup", ":0"} {
		b := n.submit(t, job(t, sh("true"), func(_ *api.Job, task *api.Task) { task.User = user }))
		test.Eq(t, "", b.ended(t), test.Sprintf("user %q", user))
	}
}

// attack starts a task and another one that attacks it, and returns which attempts have succeeded, in the task or in a
// session.
func attack(t *testing.T, n *node, edit ...func(*api.Job, *api.Task)) map[string]bool {
	t.Helper()
	victim := n.start(t, sh("umask 0; echo secret >$NOMAD_TASK_DIR/secret; exec sleep 1000"), edit...)
	defer victim.stop(t)
	secret := victim.dir() + "/main/local/secret"
	testsupport.Eventually(t, "the victim has its secret", func() bool { return testsupport.Exists(secret) })
	pid := n.stateOf(t, victim.id).Identity.PID
	script := strings.NewReplacer("SECRET", secret, "VICTIM", victim.dir(), "PID", strconv.Itoa(pid), "TMP", nomadBinary).
		Replace(`
try() { eval "$2" >/dev/null 2>&1 && echo "$1: yes" || echo "$1: no"; }
try "read another task's file" "cat SECRET"
try "read it by .." "cat $NOMAD_TASK_DIR/../../../` + victim.id + `/main/local/secret"
try "read it by a link" "ln -sf VICTIM $NOMAD_TASK_DIR/link; cat $NOMAD_TASK_DIR/link/main/local/secret"
try "change it" "echo >>SECRET"
try "signal another task" "kill -0 PID"
try "signal every process" "kill -0 1"
try "read another task's maps" "cat /proc/PID/maps"
try "list the host's files" "ls /home"
try "enter a user namespace" "unshare -U true"
try "enter the host's namespaces" "nsenter -t 1 -m true"
try "create a device node" "mknod $NOMAD_TASK_DIR/null c 1 3"
try "mount" "mount -t tmpfs tmpfs $NOMAD_TASK_DIR"
try "raise a hard limit" "(ulimit -Hn 99999999)"
try "see the host's /tmp" "ls TMP"
`)
	a := n.start(t, sh(script+"exec sleep 1000"), edit...)
	defer a.stop(t)
	a.says(t, "stdout", "see the host's /tmp: ")
	_, out, _ := a.session(t, false, nil, nil, "/bin/sh", "-c", script)
	succeeded := map[string]bool{}
	for line := range strings.Lines(a.output(t, "stdout") + out) {
		attempt, result, _ := strings.Cut(strings.TrimSpace(line), ": ")
		succeeded[attempt] = succeeded[attempt] || result == "yes"
	}
	return succeeded
}
