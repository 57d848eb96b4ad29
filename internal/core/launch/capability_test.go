// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func mask(t *testing.T, names ...string) uint64 {
	t.Helper()
	m, err := task.ParseCapabilities("cap_add", names)
	must.NoError(t, err)
	return m
}

func TestCapabilities_AreAddedAndDropped(t *testing.T) {
	testsupport.NeedRoot(t)
	nothingLeft(t)
	nobody := &task.User{UID: 65534, GID: 65534}
	const none, bind, kill = "0000000000000000", "0000000000000400", "0000000000000020"
	own := field(t, mustRun(t, shell(report)).out, "CapBnd")
	for name, row := range map[string]struct {
		user                              *task.User
		c                                 task.Capabilities
		permitted, bounding, ambient, gid string
	}{
		"none":  {nobody, task.Capabilities{}, none, own, none, "65534"},
		"added": {nobody, task.Capabilities{Add: mask(t, "net_bind_service")}, bind, own, bind, "65534"},
		"added to none": {nobody, task.Capabilities{Drop: mask(t, "all") &^ mask(t, "CAP_KILL"), Add: mask(t, "kill")},
			kill, kill, kill, "65534"},
		"all dropped":  {nobody, task.Capabilities{Drop: mask(t, "ALL")}, none, none, none, "65534"},
		"root's":       {nil, task.Capabilities{Drop: mask(t, "all") &^ mask(t, "kill")}, kill, kill, none, "0"},
		"none of root": {nil, task.Capabilities{Drop: mask(t, "all")}, none, none, none, "0"},
	} {
		spec := shell(report)
		spec.Command.User, spec.Command.Capabilities = row.user, row.c
		out := mustRun(t, spec).out
		for set, want := range map[string]string{
			"CapPrm": row.permitted, "CapEff": row.permitted, "CapBnd": row.bounding, "CapAmb": row.ambient,
			"CapInh": row.ambient,
		} {
			test.Eq(t, want, field(t, out, set), test.Sprintf("%s: %s", name, set))
		}
		test.Eq(t, row.gid, strings.Fields(field(t, out, "Gid"))[0], test.Sprint(name))
	}
}

func TestCapabilities_AreRefusedIfTheAgentLacksThem(t *testing.T) {
	testsupport.NeedRoot(t)
	spec := shell(report)
	spec.Command.User = &task.User{UID: 65534, GID: 65534}
	spec.Command.Capabilities.Add = mask(t, "net_bind_service", "kill")
	cmd := exec.Command("setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-all", self, "supervise")
	cmd.Stdin = specJSON(t, spec)
	out, err := cmd.Output()
	test.Error(t, err)
	test.Eq(t, "error: capabilities kill, net_bind_service cannot be added: the agent itself must have them\n",
		string(out))
}
