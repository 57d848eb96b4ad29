// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/agent"
)

func TestBuilder_RunsNoTasks(t *testing.T) {
	t.Parallel()
	if !agent.Privileged() {
		t.Skip("needs root: the agent's user is the only one")
	}
	n := newNode(t, nodeOptions{python: &pythonOptions{}})
	other := newNode(t, nodeOptions{})
	as := func(user string) func(*api.Job, *api.Task) {
		return func(_ *api.Job, task *api.Task) { task.User = user }
	}
	inGroup := func(c conf, group string) conf { return c.with(conf{"groups": []string{group}}) }
	refused := map[string]*alloc{}
	for name, user := range map[string]string{
		"a reserved user": "79950", "a reserved group": "nobody:79901", "the user of build_user": fmt.Sprint(n.builder),
		"the group of build_user": fmt.Sprint("nobody:", n.builder),
	} {
		refused["python, "+name] = n.submit(t, py(t, code("print(1)"), as(user)))
		refused["exec-lite, "+name] = other.submit(t, job(t, sh("true"), as(user)))
	}
	group := fmt.Sprint(n.builder)
	refused["python, a supplementary group"] = n.submit(t, py(t, inGroup(code("print(1)"), group), as("nobody")))
	refused["exec-lite, a supplementary group"] = other.submit(t, job(t, inGroup(sh("true"), group), as("nobody")))
	for name, a := range refused {
		a.ended(t)
		i, st, _ := a.info()
		said := ""
		for _, e := range st.Events {
			if e.Type == api.TaskDriverFailure {
				said += e.DisplayMessage
			}
		}
		must.Eq(t, "failed", i.ClientStatus,
			must.Sprintf("%s: the allocation is %s, and it says", name, i.ClientStatus))
		test.StrContains(t, said, "builds what tasks of this node use",
			test.Sprintf("%s: the allocation is %s, and it says", name, i.ClientStatus))
	}
}
