// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const datasetPage = "docs/plugins/dataset.md"

var volumeFile = regexp.MustCompile(`^# (\S+\.volume\.hcl)\n`)

// TestDatasetPage_CommandsWork runs the page's commands on an operator's node, a bare Debian with Nomad. The commands
// make the file system.
func TestDatasetPage_CommandsWork(t *testing.T) {
	testsupport.Long(t, "a bare Debian, and volumes that Nomad is slow to make")
	page := readFences(t, datasetPage)
	r := newRoot(t)
	r.put(".", dataset, execLite)
	files := jobFiles(page)
	for _, f := range page {
		if m := volumeFile.FindStringSubmatch(f.text); f.lang == "hcl" && m != nil {
			files[m[1]] = f.text
		}
	}
	for name, text := range files {
		must.NoError(t, os.WriteFile(filepath.Join(r.Dir, "root", name), []byte(text), 0o600))
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, err := r.try("tail -n 60 /var/log/nomad.log; journalctl -u nomad | tail -n 60")
			t.Logf("the agent's log (%v):\n%s", err, out)
		}
	})
	r.sh("systemctl enable --now zfs-fuse; systemctl start nomad; install -D -m 755 nomad-driver-exec-lite " +
		"/opt/nomad/data/plugins/nomad-driver-exec-lite; ./nomad-driver-exec-lite config " +
		">/etc/nomad.d/nomad-driver-exec-lite.hcl")
	runFencesBy(t, page, func(commands string) (string, error) { return r.Run(t.Context(), commands) })
	r.sh("for job in *.nomad.hcl; do nomad job validate $job; done")
}
