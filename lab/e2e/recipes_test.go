// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// archive serves an archive of a directory, and returns the server's URL.
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

// TestRecipes_Run runs the jobs of the page, with stand-ins for the programs that a user brings.
func TestRecipes_Run(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t) // for another user
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
		a := submit(t, n, "read-sensor", "", "", func(j *api.Job) { j.Periodic = nil }) // now, and not in five minutes
		must.Eq(t, "exit 0", a.ended(t), must.Sprint(a.story()))
		test.Eq(t, "stick: read\n", a.output(t, "stdout"))
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
