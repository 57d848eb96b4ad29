// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func profile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "profile.json")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSeccomp_IsInTheTaskAndItsSessions(t *testing.T) {
	testsupport.NeedRoot(t)
	path := profile(t, `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
		{"names": ["mkdir", "mkdirat", "not_on_this_machine"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
		{"names": ["kill"], "action": "SCMP_ACT_ERRNO",
			"args": [{"index": 1, "value": 10, "op": "SCMP_CMP_EQ"}]}]}`)
	const script = "mkdir d 2>&1 | sed 's/.*: //'; kill -USR1 $$ 2>/dev/null || echo no USR1; kill -0 $$ && " +
		"echo others; sed -n 's/^NoNewPrivs:.//p; s/^Seccomp:.//p' /proc/self/status; "
	const want = "Function not implemented\nno USR1\nothers\n1\n2\n"
	a := startInstance(t, testInstance{}, map[string]any{"seccomp": path})
	cfg := a.shell(script+"sleep 600", "", func(c *drivers.TaskConfig) { c.User = "nobody" })
	a.run(cfg)
	testsupport.Eventually(t, "the task has run the script", func() bool { return len(a.output(cfg)) >= len(want) })
	test.Eq(t, want, a.output(cfg))
	r, err := a.ExecTask(cfg.ID, []string{"/bin/sh", "-c", script}, time.Minute)
	must.NoError(t, err)
	test.Eq(t, want, string(r.Stdout))
	must.NoError(t, a.StopTask(cfg.ID, 0, ""))
	a.destroy(cfg.ID)
}

func TestSeccomp_DefaultKeepsUsersOutOfUserNamespaces(t *testing.T) {
	testsupport.NeedRoot(t)
	const script = "unshare -U true 2>/dev/null && echo entered || echo denied; (exec 2>&1; echo works)"
	for _, row := range []struct{ option, user, want string }{
		{"default", "nobody", "denied\nworks\n"},
		{"default", "root", "entered\nworks\n"}, // by its capabilities
		{"unconfined", "nobody", "entered\nworks\n"},
	} {
		a := startInstance(t, testInstance{}, map[string]any{"seccomp": row.option})
		out, _ := a.result(a.shell(script, "", func(c *drivers.TaskConfig) { c.User = row.user }))
		test.Eq(t, row.want, out, test.Sprintf("%+v", row))
	}
}

func TestSeccomp_RulesDependOnCapabilities(t *testing.T) {
	none, err := seccompFilter(seccompDefault, 0)
	must.NoError(t, err)
	all, err := seccompFilter(seccompDefault, task.AllCapabilities())
	must.NoError(t, err)
	test.NotEq(t, none, all)
	unconfined, err := seccompFilter(seccompUnconfined, 0)
	must.NoError(t, err)
	test.Eq(t, "", unconfined)
}

func TestSeccomp_RefusalsAreOneSentence(t *testing.T) {
	rule := func(text string) string {
		return profile(t, `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [`+text+`]}`)
	}
	for option, want := range map[string]string{
		"strict":        `seccomp = "strict": use "unconfined", "default" or the absolute path of a profile`,
		"/proc/nothing": "no such file or directory",
		profile(t, `{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "syscalls": [{"names": ["read"],
			"action": "SCMP_ACT_ALLOW"}]}`): "defaultErrnoRet is not supported",
		profile(t, "{}"):         "the profile has no rules",
		profile(t, "no profile"): "invalid character",
		rule(`{"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}`): `the action "SCMP_ACT_NOTIFY" is not supported`,
		rule(`{"names": ["kill"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 1, "value": 7, "valueTwo": 3,
			"op": "SCMP_CMP_MASKED_EQ"}]}`): `the operator "SCMP_CMP_MASKED_EQ" is not supported, or not with this value`,
		rule(`{"names": ["kill"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 6, "value": 7, "op": "SCMP_CMP_EQ"}]}`): "the argument 6 does not exist",
	} {
		_, err := seccompFilter(option, 0)
		test.ErrorContains(t, err, want, test.Sprint(option))
	}
}
