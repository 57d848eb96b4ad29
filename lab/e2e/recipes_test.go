// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// TestRecipes_Run runs the jobs of the page, with stand-ins for the programs that a user brings.
func TestRecipes_Run(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t) // for another user
	root := filepath.Join(mkdir(t), "usb")
	stick := plug(t, root, "-id", "10c4:ea60")
	n := newNode(t, nodeOptions{usb: &usbOptions{root: root, more: zigbee}})
	jobs := jobFiles(readFences(t, "docs/guides/recipes.md"))
	submit := func(t *testing.T, name, old, replacement string, edit ...func(*api.Job)) *alloc {
		t.Helper()
		text := jobs[name+".nomad.hcl"]
		must.StrContains(t, text, old)
		return n.submitHCL(t, strings.ReplaceAll(text, old, replacement), edit...)
	}

	t.Run("web-api", func(t *testing.T) {
		release := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			const program = "#!/bin/sh\nexec python3 -m http.server --bind \"${2%:*}\" \"${2##*:}\"\n"
			compressed := gzip.NewWriter(w)
			archive := tar.NewWriter(compressed)
			_ = archive.WriteHeader(&tar.Header{Name: "web-api", Mode: 0o755, Size: int64(len(program))})
			_, _ = archive.Write([]byte(program))
			_, _ = archive.Close(), compressed.Close()
		}))
		defer release.Close()
		a := submit(t, "web-api", "https://example.com", release.URL)
		a.running(t)
		testsupport.Within(t, time.Minute, func() error {
			found, _, err := n.Client().Services().Get("web-api", nil)
			if err != nil || len(found) != 1 {
				return fmt.Errorf("%d services, %w", len(found), err)
			}
			_, err = get(fmt.Sprintf("http://%s:%d/", found[0].Address, found[0].Port))
			return err
		})
		a.stop(t)
	})
	t.Run("read-sensor", func(t *testing.T) {
		a := submit(t, "read-sensor", "", "", func(j *api.Job) { j.Periodic = nil }) // now, and not in five minutes
		must.Eq(t, "exit 0", a.ended(t), must.Sprint(a.story()))
		test.Eq(t, "stick: read\n", a.output(t, "stdout"))
	})
	t.Run("bridge", func(t *testing.T) {
		const program = "#!/bin/sh\necho bridge >\"$2\"\ntouch \"$4/database\"\necho up\nexec sleep 1000\n"
		bridge := filepath.Join(mkdir(t), "start")
		must.NoError(t, os.WriteFile(bridge, []byte(program), 0o755)) //nolint:gosec // a program
		a := submit(t, "bridge", "/opt/bridge/start", bridge)
		a.says(t, "stdout", "up")
		test.StrContains(t, stick.heard(), "bridge")
		a.stop(t)
	})
}
