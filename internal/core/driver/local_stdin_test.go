// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestStdin_StaysOpenIfTheJobAsks(t *testing.T) {
	testsupport.NeedRoot(t) // to run a task as another user
	a := start(t, nil)
	asNobody := func(c *drivers.TaskConfig) { c.User = "nobody" }
	const script = "echo ready; line=$(head -n 1 /dev/stdin); echo got $line; exit 3"
	out, _ := a.result(a.shell(script, "", asNobody))
	test.Eq(t, "ready\ngot\n", out, test.Sprint("by default"))

	cfg := a.shell(script, `stdin = "open"`, asNobody)
	a.run(cfg)
	defer a.destroy(cfg.ID)
	testsupport.Eventually(t, "the task reads", func() bool { return a.output(cfg) == "ready\n" })
	write := fmt.Sprintf("echo hello >/proc/%d/fd/0", a.pid(cfg.ID))
	r, err := a.ExecTask(cfg.ID, []string{"/bin/sh", "-c", write}, time.Minute)
	must.NoError(t, err)
	must.Eq(t, 0, r.ExitResult.ExitCode, must.Sprintf("%s%s", r.Stdout, r.Stderr))
	test.Eq(t, 3, a.wait(cfg.ID).ExitCode)
	test.Eq(t, "ready\ngot hello\n", a.output(cfg))
}
