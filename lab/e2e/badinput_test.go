// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
)

func TestBadInput_GetsOneSentence(t *testing.T) {
	t.Parallel()
	n := common(t)
	asNobody := func(_ *api.Job, task *api.Task) { task.User = "nobody" }
	type row struct {
		name string
		c    conf
		edit func(*api.Job, *api.Task)
		want string

		byNomad bool // refused before a driver sees it, in Nomad's words
	}
	rows := []row{
		{name: "empty command", c: conf{"command": ""}, want: `command is empty`},
		{name: "missing program", c: conf{"command": "/no/such/program"}, want: `command "/no/such/program" not found`},
		{name: "not executable", c: conf{"command": "/etc/passwd"}, want: `command "/etc/passwd" is not executable`},
		{name: "no such user", c: sh("true"), edit: func(_ *api.Job, task *api.Task) { task.User = "nobody-here" },
			want: `user "nobody-here" does not exist on this node`},
		{name: "unknown option", c: sh("true").with(conf{"comand": "x"}), want: `No argument or block type is named "comand"`,
			byNomad: true},
		{name: "soft limit above the hard one", c: sh("true").with(conf{"ulimit": conf{"nofile": "20:10"}}),
			want: `ulimit nofile = "20:10" has a soft limit above the hard one`},
	}
	if os.Geteuid() == 0 {
		rows = append(rows, row{name: "work_dir that the user may not enter", c: sh("true").with(conf{"work_dir": "/root"}),
			edit: asNobody, want: `work_dir "/root"`})
	}
	allocs := make([]*alloc, len(rows))
	for i, r := range rows {
		edit := r.edit
		if edit == nil {
			edit = func(*api.Job, *api.Task) {}
		}
		allocs[i] = n.submit(t, job(t, r.c, edit))
	}
	for i, r := range rows {
		a := allocs[i]
		a.ended(t)
		i, _, _ := a.info()
		test.Eq(t, "failed", i.ClientStatus, test.Sprintf("%s: the allocation", r.name))
		var said []string
		_, st, _ := a.info()
		for _, e := range st.Events {
			if e.Type == api.TaskDriverFailure || e.Type == api.TaskFailedValidation {
				said = append(said, e.DisplayMessage)
			}
		}
		if len(said) != 1 || !strings.Contains(said[0], r.want) || strings.Contains(said[0], "\n") && !r.byNomad {
			t.Errorf("%s: got %q, want one sentence with %q", r.name, said, r.want)
		}
		test.SliceEmpty(t, n.tasksOf(a.id), test.Sprintf("%s: state is left", r.name))
	}
}
