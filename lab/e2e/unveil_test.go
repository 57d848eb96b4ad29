// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// needLandlock skips the quick tests, and on a machine that can't confine tasks.
func needLandlock(t *testing.T) {
	t.Helper()
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t)
	if landlock.ABI() < landlock.Complete {
		t.Skip("this kernel's Landlock can't truncate")
	}
}

// unveilNode returns a node that confines tasks, and a directory with a file in open and in hidden.
func unveilNode(t *testing.T, o nodeOptions) (*node, string) {
	t.Helper()
	needLandlock(t)
	dir := mkdir(t)
	for _, sub := range []string{"/open", "/hidden"} {
		must.NoError(t, os.Mkdir(dir+sub, 0o755))
		must.NoError(t, os.WriteFile(dir+sub+"/file", []byte("text of "+sub+"\n"), 0o644)) //nolint:gosec // for any user
	}
	o.plugin = "unveil = \"strict\"\nunveil_by_task = true\n"
	return newNode(t, o), dir
}

func asNobody(_ *api.Job, task *api.Task) { task.User = "nobody" }

func TestUnveil_ConfinesTasksAndTheirSessions(t *testing.T) {
	n, dir := unveilNode(t, nodeOptions{})
	attempts := strings.ReplaceAll(`
echo kept >$NOMAD_TASK_DIR/own; cat $NOMAD_TASK_DIR/own
echo shared >$NOMAD_ALLOC_DIR/data/shared; cat $NOMAD_ALLOC_DIR/data/shared
cat @/open/file
echo to stdout >/dev/stdout
for f in @/hidden/file /proc/1/comm; do cat $f 2>/dev/null || echo denied; done
`, "@", dir)
	const want = "kept\nshared\ntext of /open\nto stdout\ndenied\ndenied\n"
	a := n.start(t, sh(attempts+"exec sleep 1000").with(conf{"unveil": []string{"r:" + dir + "/open"}}), asNobody)
	a.says(t, "stdout", "denied\ndenied\n")
	test.Eq(t, want, a.output(t, "stdout"), test.Sprint(a.output(t, "stderr")))
	attempts = strings.Replace(attempts, ">/dev/stdout", "", 1) // which belongs to root here
	_, out, _ := a.session(t, false, nil, nil, "/bin/sh", "-c", attempts)
	test.Eq(t, want, out)
	a.stop(t)

	a = n.submit(t, job(t, sh("true").with(conf{"unveil": []string{"r:" + dir + "/missing"}}), asNobody))
	test.Eq(t, "", a.ended(t), test.Sprint("it was not started"))
	test.NoError(t, a.tells(`unveil: path "`+dir+`/missing" does not exist`))
}

func TestUnveil_PythonTasksHaveTheirEnvironment(t *testing.T) {
	n, dir := unveilNode(t, nodeOptions{python: &pythonOptions{}})
	c := code("import confined, json, ssl", "print(confined.VERSION)", "open('"+dir+"/open/file')").
		with(needs(wheelhouse(t, wheel.Wheel{Name: "confined", Version: "3"}), "confined"))
	a := n.submit(t, py(t, c))
	test.Eq(t, "exit 1", a.ended(t))
	test.Eq(t, "3\n", a.output(t, "stdout"))
	test.StrContains(t, a.output(t, "stderr"), "PermissionError")
}
