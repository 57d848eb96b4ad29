// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// way is a way to install a plugin on a node. Its commands run in a folder with the artefact of one version. For the
// deb, see TestNodePages_CommandsWork.
type way struct {
	artefact string // a pattern of the file's name

	install, remove    string
	upgrade, downgrade string // empty: the same as install
}

var ways = map[string]way{
	"zip": {
		artefact: "nomad-driver-exec-lite_*.zip",
		install:  unzip,
		remove:   "rm -r /opt/nomad/data/plugins /etc/nomad.d/nomad-driver-exec-lite.hcl",
	},
	"rpm": { // --nodeps: Debian's rpm database is empty
		artefact:  "nomad-driver-exec-lite-*.rpm",
		install:   "rpm -i --nodeps nomad-driver-exec-lite-*.rpm",
		upgrade:   "rpm -U --nodeps nomad-driver-exec-lite-*.rpm",
		downgrade: "rpm -U --nodeps --oldpackage nomad-driver-exec-lite-*.rpm",
		remove:    "rpm -e nomad-driver-exec-lite",
	},
}

const unzip = `unzip -qo nomad-driver-exec-lite_*.zip
install -D -m 755 nomad-driver-exec-lite /opt/nomad/data/plugins/nomad-driver-exec-lite
./nomad-driver-exec-lite config >/etc/nomad.d/nomad-driver-exec-lite.hcl`

// long starts a job that prints numbered lines until a file exists.
func (r *root) long(id string) *rootJob {
	r.t.Helper()
	script := "n=0; until [ -e /tmp/end-" + id + " ]; do echo line $n; n=$((n+1)); sleep 0.05; done; echo last $n; exit 7"
	r.sh(eventually + "attempts=0 job " + id + ` exec-lite 'command = "/bin/sh"
args = ["-c", "` + script + `"]'`)
	j := &rootJob{root: r, id: id}
	j.becomes("running")
	j.alloc = strings.TrimSpace(r.sh(eventually + "newest " + id))
	return j
}

// only is a shell function that prints the PID of the only process whose command line matches. It retries, because a
// forked child has its parent's command line until it executes a program.
const only = `only() {
  for _ in $(seq 50); do
    pids=$(pgrep -f "$1" || true)
    case $pids in
      *[!0-9]* | "") sleep 0.1 ;;
      *) echo "$pids"; return ;;
    esac
  done
  echo "processes: $pids" >&2
  return 1
}
`

// pid returns the PID of the task's shell.
func (j *rootJob) pid() string { return j.sh(only + "only '^/bin/sh -c n=0; until .*-" + j.id + " ]'") }

// end ends the job, and checks that it exits with 7 and that its output is complete.
func (j *rootJob) end() {
	j.t.Helper()
	j.sh("touch /tmp/end-" + j.id)
	j.becomes("dead")
	const exits = `{{range .TaskStates}}{{range .Events}}{{with .Details.exit_code}}{{.}} {{end}}{{end}}{{end}}`
	got := strings.Fields(j.sh("nomad alloc status -t '" + exits + "' " + j.alloc))
	test.Eq(j.t, []string{"7"}, got, test.Sprint(j.sh(eventually+"story "+j.id)))
	lines, ended, err := numbered(j.sh("nomad alloc logs " + j.alloc))
	test.NoError(j.t, err)
	test.True(j.t, ended, test.Sprintf("the output ends after %d lines", lines))
	j.sh("rm /tmp/end-" + j.id)
}

// TestPackages_InstallUpgradeAndRemove installs a plugin from a zip and an rpm on a bare node: the agent loads it, jobs
// run, tasks survive the upgrade and the rollback, and the removal leaves nothing behind.
func TestPackages_InstallUpgradeAndRemove(t *testing.T) {
	testsupport.Long(t, "builds two releases and a bare Debian")
	t.Parallel()
	top := newRoot(t)
	rel, err := getReleases()
	must.NoError(t, err)
	top.sh("systemctl start nomad")
	before := top.files()
	for _, kind := range []string{"zip", "rpm"} {
		t.Run(kind, func(t *testing.T) {
			r := top.with(t)
			ways[kind].try(r, kind, rel)
			r.unchanged(before)
		})
	}
	t.Run("removed while a task runs", func(t *testing.T) {
		r := top.with(t)
		r.removedTooEarly(rel)
		r.unchanged(before)
	})
}

func (w way) try(r *root, kind string, rel *releases) {
	t := r.t
	t.Helper()
	for _, version := range []string{older, newer} {
		r.put(kind+"/"+version, rel.file(t, version, w.artefact))
	}
	do := func(version, commands string) string {
		return r.sh("cd /root/" + kind + "/" + version + "\n" + commands)
	}
	if kind == "rpm" { // check its dependencies, which --nodeps ignores
		needs := do(older, "rpm -qpR nomad*.rpm | grep -v '^rpmlib(' || true")
		test.Eq(t, "", needs, test.Sprint("a static program has no dependencies"))
	}
	do(older, w.install+"\nsystemctl restart nomad")
	r.loaded("exec-lite", older)

	first := r.long(kind + "-first")
	pid := first.pid()
	do(newer, cmp.Or(w.upgrade, w.install)+"\nsystemctl restart nomad")
	r.loaded("exec-lite", newer)
	test.Eq(t, pid, first.pid())
	second := r.long(kind + "-second")
	secondPID := second.pid()
	do(older, cmp.Or(w.downgrade, w.install)+"\nsystemctl restart nomad")
	r.loaded("exec-lite", older)
	test.Eq(t, pid, first.pid())
	test.Eq(t, secondPID, second.pid())
	first.end()
	second.end()

	r.forget(first.id, second.id)
	do(older, w.remove+"\nsystemctl restart nomad")
	test.StrNotContains(t, r.sh("nomad node status -self -json"), "driver.exec-lite")
}

// forget removes jobs that have ended, with their allocations.
func (r *root) forget(jobs ...string) {
	r.t.Helper()
	r.sh("for job in " + strings.Join(jobs, " ") + "; do nomad job stop -purge -detach $job; done; nomad system gc")
}

// removedTooEarly checks that a task survives when the plugin's package is removed and later installed again. Without
// the plugin, the agent starts although the plugin's configuration is still there.
func (r *root) removedTooEarly(rel *releases) {
	t := r.t
	t.Helper()
	r.put("deb", rel.file(t, older, "*.deb"))
	r.sh("dpkg -i deb/*.deb\nsystemctl restart nomad")
	j := r.long("kept")
	pid := j.pid()
	r.sh("dpkg -r nomad-driver-exec-lite\nls /etc/nomad.d/nomad-driver-exec-lite.hcl")
	r.sh("systemctl restart nomad\nnomad node status -self | grep ready")
	r.sh(eventually + `eventually "nomad alloc status ` + j.alloc + ` | grep 'driver not found'"`)
	test.Eq(t, pid, j.pid(), test.Sprint("the task ended when the package was removed"))
	r.sh("dpkg -i deb/*.deb\nsystemctl restart nomad")
	r.loaded("exec-lite", older)
	j.becomes("running")
	test.Eq(t, pid, j.pid())
	j.end()
	r.forget(j.id)
	r.sh("dpkg -P nomad-driver-exec-lite\nsystemctl restart nomad")
}

// loaded waits until the agent has a healthy driver of this version.
func (r *root) loaded(driver, version string) {
	r.t.Helper()
	version = fmt.Sprintf("\"driver.%s.version\": %q", driver, version)
	testsupport.Within(r.t, time.Minute, func() error { // the server gets the state with the next fingerprint
		if node := r.sh("nomad node status -self -json"); !strings.Contains(node, version) {
			return fmt.Errorf("the node has no attribute %s", version)
		}
		for line := range strings.Lines(r.sh("nomad node status -self -verbose")) {
			if f := strings.Fields(line); len(f) > 3 && f[0] == driver && f[1] == "true" && f[2] == "true" {
				return nil
			}
		}
		return fmt.Errorf("%s is not healthy", driver)
	})
}
