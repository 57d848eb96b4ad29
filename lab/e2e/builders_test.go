// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestBuilder_RunsNoTasks(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the agent's user is the only one")
	}
	n := newNode(t, nodeOptions{python: &pythonOptions{}})
	builder := fmt.Sprint(n.builder)
	inGroup := code("print(1)").with(conf{"groups": []string{builder}})
	for name, row := range map[string]struct {
		user string
		c    conf
	}{
		"the user":              {builder, code("print(1)")},
		"the group":             {"nobody:" + builder, code("print(1)")},
		"a supplementary group": {"nobody", inGroup},
	} {
		a := n.submit(t, py(t, row.c, func(_ *api.Job, task *api.Task) { task.User = row.user }))
		a.ended(t)
		i, _, err := a.info()
		must.NoError(t, err)
		must.Eq(t, "failed", i.ClientStatus, must.Sprint(name))
		test.NoError(t, a.tells("builds what tasks of this node use"), test.Sprint(name))
	}
}
