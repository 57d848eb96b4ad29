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
	"github.com/outrider-dev/outrider/lab/e2e/features"
)

// TestFeatures_OfNomadsDriversWork runs a job for each feature, and one without it. TestFeatures_WorkOnCgroupV2 of
// lab/e2e/vm runs them in a virtual machine.
func TestFeatures_OfNomadsDriversWork(t *testing.T) {
	testsupport.Long(t, "one job with each of many options")
	t.Parallel()
	needRootAgent(t)
	for _, file := range features.Files {
		touch(t, file)
		t.Cleanup(func() { os.Remove(file) })
	}
	n := commonNode.get(t)
	for _, f := range features.All {
		t.Run(f.Name, func(t *testing.T) {
			var edit []func(*api.Job, *api.Task)
			if f.Edit != nil {
				edit = append(edit, f.Edit)
			}
			a := n.submit(t, job(t, sh(f.Script).with(f.Config), edit...))
			test.StrHasPrefix(t, "exit ", a.ended(t), test.Sprint(a.story()))
			test.Eq(t, f.Want, strings.TrimSpace(a.output(t, "stdout")), test.Sprint(a.output(t, "stderr")))
			if f.Host == "" {
				return
			}
			plain := n.submit(t, job(t, sh(f.Script)))
			plain.ended(t)
			test.Eq(t, f.Host, strings.TrimSpace(plain.output(t, "stdout")), test.Sprint("without ", f.Name))
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
