// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// archive serves a directory as an archive, and returns the URL.
func archive(t *testing.T, dir string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tar := exec.CommandContext(r.Context(), "tar", "-C", dir, "-cz", ".")
		tar.Stdout = w
		_ = tar.Run()
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestRecipes_Run runs the jobs of docs/guides/recipes.md, with stand-ins for the user's programs.
func TestRecipes_Run(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t) // a job runs as another user
	root := filepath.Join(mkdir(t), "usb")
	stick := plug(t, root, "-id", "10c4:ea60")
	n := newNode(t, nodeOptions{usb: &usbOptions{root: root, more: zigbee}})
	jobs := jobFiles(readFences(t, "docs/guides/recipes.md"))
	submit := func(t *testing.T, n *node, name, old, replacement string, edit ...func(*api.Job)) *alloc {
		t.Helper()
		text := jobs[name+".nomad.hcl"]
		must.StrContains(t, text, old)
		return n.submitHCL(t, strings.ReplaceAll(text, old, replacement), edit...)
	}

	t.Run("web-api", func(t *testing.T) {
		const program = "#!/bin/sh\nexec python3 -m http.server --bind \"${2%:*}\" \"${2##*:}\"\n"
		dir := mkdir(t)
		must.NoError(t, os.WriteFile(filepath.Join(dir, "web-api"), []byte(program), 0o755)) //nolint:gosec // a program
		a := submit(t, n, "web-api", "https://example.com", archive(t, dir))
		a.running(t)
		a.checked(t)
		a.stop(t)
	})
	t.Run("orders-api", func(t *testing.T) {
		testsupport.NeedPython(t)
		var wheels []wheel.Wheel
		for _, name := range []string{"fastapi", "uvicorn"} {
			text, err := os.ReadFile("testdata/packages/" + name + ".py")
			must.NoError(t, err)
			files := map[string]string{name + ".py": string(text)}
			wheels = append(wheels, wheel.Wheel{Name: name, Version: "1.0", Files: files})
		}
		index := httptest.NewServer(wheel.Index(wheelhouse(t, wheels...)))
		defer index.Close()
		url := index.URL + "/simple"
		dir := mkdir(t)
		must.NoError(t, os.CopyFS(dir, os.DirFS("testdata/orders-api")))
		out, err := shell(t, dir, os.Environ(), "uv lock --no-python-downloads --no-cache --default-index "+url)
		must.NoError(t, err, must.Sprint(out))
		a := submit(t, pythonNode.get(t), "orders-api", "https://example.com", archive(t, dir), func(j *api.Job) {
			j.TaskGroups[0].Tasks[0].Config["index_url"] = url // instead of PyPI
		})
		a.running(t)
		a.checked(t)
		a.stop(t)
	})
	t.Run("read-sensor", func(t *testing.T) {
		a := submit(t, n, "read-sensor", "", "", func(j *api.Job) { j.Periodic = nil }) // run it now, not in five minutes
		a.ends(t, "exit 0", "stick: read\n")
	})
	t.Run("bridge", func(t *testing.T) {
		const program = "#!/bin/sh\necho bridge >\"$2\"\ntouch \"$4/database\"\necho up\nexec sleep 1000\n"
		bridge := filepath.Join(mkdir(t), "start")
		must.NoError(t, os.WriteFile(bridge, []byte(program), 0o755)) //nolint:gosec // a program
		a := submit(t, n, "bridge", "/opt/bridge/start", bridge)
		a.says(t, "stdout", "up")
		test.StrContains(t, stick.heard(), "bridge")
		a.stop(t)
	})
}

// TestRecipes_StagingGetsClones runs the page's Postgres jobs with stand-ins for the programs. Staging gets two clones.
func TestRecipes_StagingGetsClones(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	classes := strings.ReplaceAll(pool(t, "fast"), `["mode"]`, `["uid", "gid", "mode", "clone_from"]`)
	n := newNode(t, nodeOptions{classes: classes})
	programs := n.programs(t, map[string]string{
		"initdb": "mkdir -m 700 $PGDATA",
		"postgres": `set -eC
echo $$ >$PGDATA/postmaster.pid
trap 'rm $PGDATA/postmaster.pid; exit' INT
echo $NOMAD_JOB_ID >>$PGDATA/rows
cat $PGDATA/rows
sleep 1000 &
wait`,
	})
	node, _, err := n.Client().Nodes().Info(n.id(), nil)
	must.NoError(t, err)
	here := strings.NewReplacer("/usr/lib/postgresql/15/bin", programs, `= "postgres"`, `= "nobody"`, "tank/fast",
		rootOf(classes), "db-1", node.Name)
	t.Cleanup(func() { n.withoutVolumes(t, "orders-db", "orders-db-staging") })
	_, err = nomadtest.CreateVolume(n.Client(), &api.HostVolume{Name: "orders",
		Parameters: map[string]string{"class": "fast", "uid": "65534", "gid": "65534", "mode": "0700"}})
	must.NoError(t, err)

	jobs := jobFiles(readFences(t, "docs/guides/recipes.md"))
	production := here.Replace(jobs["orders-db.nomad.hcl"])
	db := n.submitHCL(t, production)
	db.says(t, "stdout", "orders-db\n")
	staging, err := n.Client().Jobs().ParseHCL(strings.NewReplacer(`"orders-db"`, `"orders-db-staging"`, `"orders"`,
		`"orders-staging"`).Replace(production), true)
	must.NoError(t, err)
	_, _, err = n.Client().Jobs().Register(staging, nil)
	must.NoError(t, err)

	previous := ""
	for night, rows := range []string{"orders-db\n", "orders-db\norders-db\n"} {
		clone := n.submitHCL(t, here.Replace(jobs["orders-clone.nomad.hcl"]), func(j *api.Job) {
			j.ID, j.Periodic = new(fmt.Sprint("night-", night)), nil // run it now
			j.TaskGroups[0].Tasks[0].Env = map[string]string{"PATH": programs + ":" + os.Getenv("PATH")}
		})
		ended := clone.ended(t)
		stderr, _ := clone.read("stderr")
		must.Eq(t, "exit 0", ended, must.Sprint(clone.story(), stderr))
		all := n.allocs(t, "orders-db-staging", night+1)
		a := all[slices.IndexFunc(all, func(a *alloc) bool { return a.id != previous })]
		a.task, previous = "postgres", a.id
		a.says(t, "stdout", "orders-db-staging\n")
		test.Eq(t, rows+"orders-db-staging\n", a.output(t, "stdout"))

		must.NoError(t, n.Client().Allocations().Restart(db.stub(t), "postgres", nil))
		db.says(t, "stdout", rows+"orders-db\n")
	}
}

func TestSamples_RunUnchanged(t *testing.T) {
	t.Parallel()
	needRootAgent(t) // the job runs as another user
	n := commonNode.get(t)
	text, err := os.ReadFile("../../plugins/exec-lite/example/service.nomad.hcl")
	must.NoError(t, err)
	a := n.submitHCL(t, string(text), func(j *api.Job) {
		r, _, err := n.Client().Jobs().Validate(j, nil)
		if err != nil || r.Error != "" || r.Warnings != "" {
			t.Errorf("Nomad reports %v, the error %q and the warning %q", err, r.Error, r.Warnings)
		}
	})
	a.running(t)
	a.says(t, "stdout", ":") // the job prints the time
	a.stop(t)
	out := a.output(t, "stdout")
	test.Eq(t, "exit 0", a.outcome())
	test.StrHasSuffix(t, "stopped in good order\n", out)
}

func TestMigrationGuide_ExampleHasItsCapability(t *testing.T) {
	t.Parallel()
	needRootAgent(t) // only root can give capabilities to tasks
	a := commonNode.get(t).submitHCL(t, jobFiles(readFences(t, "docs/guides/migrate.md"))["caps.nomad.hcl"])
	a.ends(t, "exit 0", "CapEff:\t0000000000000400\n") // CAP_NET_BIND_SERVICE alone
}
