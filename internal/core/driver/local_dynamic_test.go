// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestDynamicUsers_AreKeptAfterAnAgentRestart(t *testing.T) {
	testsupport.NeedRoot(t)
	options := map[string]any{"dynamic_users": true}
	a := startInstance(t, testInstance{}, options)
	c, err := a.Capabilities()
	must.NoError(t, err)
	test.True(t, c.DynamicWorkloadUsers)

	const user, ids = "nomad-80123", "80123 80123 80123\n" // uid, gid, groups
	withUser := func(name string) func(*drivers.TaskConfig) {
		return func(c *drivers.TaskConfig) { c.User = name }
	}
	cfg := a.shell("echo $(id -u) $(id -g) $(id -G); sleep 600", "", withUser(user))
	th := a.run(cfg)
	testsupport.Eventually(t, "the task has started", func() bool { return a.output(cfg) != "" })
	test.Eq(t, ids, a.output(cfg))

	_, _, err = a.StartTask(a.shell("exit 0", "", withUser(user)))
	test.ErrorContains(t, err, `dynamic user nomad-80123 is still used by task "web" in allocation `+cfg.AllocID)
	test.True(t, structs.IsRecoverable(err))
	for _, same := range []string{"80123", "nomad-80123:0"} {
		_, _, err = a.StartTask(a.shell("exit 0", "", withUser(same)))
		test.ErrorContains(t, err, "dynamic user nomad-80123 is still used by task", test.Sprint(same))
	}

	a.stopDriver()
	a.startDriver(options)
	must.NoError(t, a.RecoverTask(wire(t, th)))
	_, _, err = a.StartTask(a.shell("exit 0", "", withUser(user)))
	test.ErrorContains(t, err, "is still used by task")

	must.NoError(t, a.StopTask(cfg.ID, 0, ""))
	a.destroy(cfg.ID)
	again := *cfg // the agent restarts the task, and does not name its user
	again.ID, again.User = cfg.AllocID+"/web/"+uuid.Short(), ""
	a.run(&again)
	testsupport.Eventually(t, "the task has restarted", func() bool { return a.output(&again) == ids+ids })
	must.NoError(t, a.StopTask(again.ID, 0, ""))
	a.destroy(again.ID)

	_, _, err = a.StartTask(a.shell("exit 0", ""))
	test.ErrorContains(t, err, "the agent was restarted and no longer knows the task's dynamic user")
}

func TestDynamicUsers_DoNotIncludeOrdinaryAccounts(t *testing.T) {
	testsupport.NeedRoot(t)
	options := map[string]any{"dynamic_users": true}
	a := startInstance(t, testInstance{}, options)
	nobody := func(c *drivers.TaskConfig) { c.User = "nobody" }
	cfg := a.shell("sleep 600", "", nobody)
	th := a.run(cfg)
	th.Config.User = "nomad-web" // as if an account of this name had the user id of nobody

	a.stopDriver()
	a.startDriver(options)
	must.NoError(t, a.RecoverTask(wire(t, th)))
	other := a.shell("sleep 600", "", nobody)
	a.run(other)
	for _, id := range []string{cfg.ID, other.ID} {
		must.NoError(t, a.StopTask(id, 0, ""))
		a.destroy(id)
	}
}

func TestDynamicUsers_AreKeptIfNoAgentHasRecordedTheRun(t *testing.T) {
	testsupport.NeedRoot(t)
	options := map[string]any{"dynamic_users": true}
	a := startInstance(t, testInstance{}, options)
	cfg := a.shell("id -u; sleep 600", "", func(c *drivers.TaskConfig) { c.User = "nomad-80124" })
	a.run(cfg)
	testsupport.Eventually(t, "the task has started", func() bool { return a.output(cfg) != "" })
	pid := a.pid(cfg.ID)

	a.stopDriver() // before the agent has stored the task's handle
	a.startDriver(options)
	again := *cfg
	again.ID, again.User = cfg.AllocID+"/web/"+uuid.Short(), ""
	a.run(&again)
	test.Eq(t, pid, a.pid(again.ID))
	test.Eq(t, "80124\n", a.output(&again))
	must.NoError(t, a.StopTask(again.ID, 0, ""))
	a.destroy(again.ID)
}

func TestDynamicUsers_AreOffByDefault(t *testing.T) {
	a := start(t, nil)
	c, err := a.Capabilities()
	must.NoError(t, err)
	test.False(t, c.DynamicWorkloadUsers)
	_, r := a.result(a.shell("exit 0", ""))
	test.Eq(t, 0, r.ExitCode)
}
