// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// TestMounts_AreThoseOfTheAgentThatStartsTheTask: never those of an agent before it, whose supervisor still runs. All
// else that a task gets of an agent's surroundings is internal/core/supervisor's (TestSurroundings_) and launch's.
func TestMounts_AreThoseOfTheAgentThatStartsTheTask(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	for _, driver := range []string{"exec-lite", "python"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			testMounts(t, driver, nodeOptions{}, restarts)
		})
	}
}

// withDriver has the node run this one of our drivers.
func withDriver(driver string, o nodeOptions) nodeOptions {
	if driver == "python" {
		o.python = &pythonOptions{}
	}
	return o
}

// scripted is the configuration of a task of any of the drivers that executes a script.
func scripted(driver, script string) conf {
	if driver != "python" {
		return sh(script)
	}
	return code(
		"import os, signal",
		"for s in signal.SIGPIPE, signal.SIGXFSZ: signal.signal(s, signal.SIG_DFL) # which Python ignores",
		fmt.Sprintf("os.execv('/bin/sh', ['sh', '-c', %q])", script),
	)
}

// same compares values by name.
func same(t *testing.T, where string, want, got map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: %s is %q, want %q", where, name, got[name], want[name])
		}
	}
}

// lines are the values by name of lines "name=value".
func lines(out string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			values[name] = value
		}
	}
	return values
}

// printed waits until the task has printed its last line, or has ended, and returns what it has printed.
func (a *alloc) printed(t *testing.T) (out string) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error {
		_, st, err := a.info()
		if err != nil {
			return err
		}
		if out, err = a.read("stdout"); strings.Contains(out, "printed=all\n") || st.State == "dead" {
			return nil
		}
		return fmt.Errorf("%s has printed %q: %v: %s", a.job, out, err, a.story())
	})
	return out
}

// inside runs a script by `alloc exec`, once Nomad knows that the task runs: it may print earlier.
func (a *alloc) inside(t *testing.T, script string) (string, error) {
	t.Helper()
	a.readable(t)
	return a.try(t, "/bin/sh", "-c", script)
}

// restart is a way in which an agent comes back in another mount namespace.
type restart struct {
	name string
	stop func(t *testing.T, n *node)

	// moved has the next agent's directory of allocations elsewhere, with those that exist mounted in it.
	moved bool
}

var restarts = []restart{
	{name: "agent stopped", stop: func(t *testing.T, n *node) { stop(t, n) }},
	// Nomad would re-attach to the plugin of the agent before, which is in that one's namespace, if that lived on
	{name: "agent killed", stop: func(t *testing.T, n *node) { kill(t, n) }},
	{name: "agent and plugin killed", stop: func(t *testing.T, n *node) {
		n.process(t).pause(t) // it would start another plugin
		n.plugin(t).end(t)
		kill(t, n)
	}},
	{name: "agent, plugin and supervisor killed", stop: func(t *testing.T, n *node) {
		n.process(t).pause(t)
		n.plugin(t).end(t)
		n.supervisor(t).end(t)
		kill(t, n)
	}},
	{name: "agent stopped, allocations elsewhere", moved: true,
		stop: func(t *testing.T, n *node) { stop(t, n) }},
}

// resident is a task that an agent in a mount namespace of its own has started.
type resident struct {
	*alloc
	driver    string
	namespace int
}

// prints is what it must print of where it is, and what sessions in it must.
func (r *resident) prints() string {
	volume := ""
	if r.namespace > 0 {
		volume = fmt.Sprintf("volume %d", r.namespace)
	}
	return fmt.Sprintf("tmp=tmp %[1]d\nsecret=secret %[1]d\nsecrets=tmpfs\nvolume=%[2]s\nprinted=all\n", r.namespace,
		volume)
}

const look = `echo "tmp=$(cat $PRIVATE/name)"
echo "secret=$(cat $NOMAD_SECRETS_DIR/name)"
echo "secrets=$(stat -f -c %T $NOMAD_SECRETS_DIR)"
echo "volume=$(cat $VOLUME/name 2>/dev/null)"
echo printed=all`

// needOwnRoot skips a test of mount namespaces in a chroot(2): setns(2) changes to the root of the namespace.
func needOwnRoot(t *testing.T) {
	t.Helper()
	const root = `stat -c "%d %i" /`
	here, err := exec.Command("sh", "-c", root).Output()
	must.NoError(t, err)
	entered, err := exec.Command("nsenter", "--mount=/proc/self/ns/mnt", "sh", "-c", root).Output()
	must.NoError(t, err)
	if string(here) != string(entered) {
		t.Skip("needs the root directory of its mount namespace, and this is a chroot")
	}
}

// testMounts is number 1: each agent has another directory at /var/tmp, as by PrivateTmp, and from the second one on at
// the path of a volume. Nomad's tmpfs at secrets/ is in its namespace alone, too.
func testMounts(t *testing.T, driver string, o nodeOptions, restarts []restart) {
	needOwnRoot(t)
	base := mkdir(t)
	private, volume := "/var/tmp", filepath.Join(base, "volume")
	if strings.HasPrefix(scratch, private+"/") {
		private = "/tmp"
	}
	must.NoError(t, os.Mkdir(volume, 0o755))
	directory := func(kind string, namespace int) string {
		dir := filepath.Join(base, fmt.Sprintf("%s-%d", kind, namespace))
		must.NoError(t, os.MkdirAll(dir, 0o755))
		must.NoError(t, os.Chmod(dir, 0o777)) // a task of python is nobody's
		must.NoError(t, os.WriteFile(filepath.Join(dir, "name"), fmt.Appendf(nil, "%s %d\n", kind, namespace), 0o644))
		return dir
	}
	shell := func(namespace int, more string) string {
		mounts := fmt.Sprintf("set -e\nmount --bind %s %s\n", directory("tmp", namespace), private)
		if namespace > 0 {
			mounts += fmt.Sprintf("mount --bind %s %s\n", directory("volume", namespace), volume)
		}
		return "set -- unshare --mount --propagation slave sh -c '" + mounts + more + "exec \"$@\"' sh \"$@\""
	}
	o.shell = shell(0, "")
	o.config = fmt.Sprintf("client {\n  host_volume \"data\" {\n    path = %q\n  }\n}\n", volume)
	consul := newConsul(t)
	n := newNode(t, consul.options(withDriver(driver, o)))
	trigger := filepath.Join(n.dir, "go")

	var residents []*resident
	// begin starts a task with each driver, and looks at all of this agent's and the ones before.
	begin := func(t *testing.T, namespace int, allocations string) {
		for _, driver := range []string{driver, "raw_exec"} {
			at, edit := volume, []func(*api.Job, *api.Task){}
			if driver != "raw_exec" { // which has no volumes
				at, edit = "/data", append(edit, withVolume("data", "/data"))
			}
			script := look + `
for dir in $PRIVATE $VOLUME $NOMAD_SECRETS_DIR; do echo written >$dir/$NOMAD_ALLOC_ID; done
echo written
until [ -e ` + trigger + ` ]; do sleep 0.2; done
echo after
exit 7`
			j := job(t, scripted(driver, script), append(edit, asDriver(driver), withMemory(48), asService,
				func(j *api.Job, task *api.Task) {
					task.Env = map[string]string{"PRIVATE": private, "VOLUME": at}
					task.Templates = []*api.Template{{EmbeddedTmpl: new(fmt.Sprintf("secret %d\n", namespace)),
						DestPath: new("secrets/name"), ChangeMode: new("noop")}}
					task.Services = []*api.Service{{Name: "checked", Provider: "consul", Checks: []api.ServiceCheck{{
						Name: *j.ID, Type: "script", Command: "/bin/sh", Args: []string{"-c", look}, Interval: 2 * time.Second,
						Timeout: time.Minute,
					}}}}
				})...)
			residents = append(residents, &resident{n.submit(t, j), driver, namespace})
		}
		for _, r := range residents {
			where := fmt.Sprintf("%s, task of agent %d while agent %d runs", r.driver, r.namespace, namespace)
			want := lines(r.prints())
			if r.namespace == namespace {
				same(t, where, want, lines(r.printed(t)))
				r.says(t, "stdout", "written\n")
				for name, dir := range map[string]string{"/tmp": directory("tmp", namespace),
					"the volume": directory("volume", namespace)} {
					if namespace > 0 || name == "/tmp" {
						test.True(t, testsupport.Exists(filepath.Join(dir, r.id)),
							test.Sprintf("%s: what it has written to %s is elsewhere", where, name))
					}
				}
				test.False(t, testsupport.Exists(filepath.Join(allocations, r.id, "main", "secrets", r.id)),
					test.Sprintf("%s: what it has written to secrets/ is on the disk", where))
			}
			out, err := r.inside(t, look)
			test.NoError(t, err, test.Sprint(where))
			same(t, where+", alloc exec", want, lines(out))
			if r.namespace != namespace {
				continue
			}
			test.NoError(t, testsupport.Poll(time.Minute, func() error {
				told := consul.told(r.job)
				if len(told) == 0 {
					return errors.New("there was none")
				}
				if s := told[len(told)-1]; s.Status != "passing" || s.Output != r.prints() {
					return fmt.Errorf("the last one is %+v, want %q", s, r.prints())
				}
				return nil
			}), test.Sprintf("%s, script check", where))
		}
	}
	host := filepath.Join(n.DataDir(), "alloc")
	begin(t, 0, host)
	for i, r := range restarts {
		namespace := i + 1
		t.Run(r.name, func(t *testing.T) {
			r.stop(t, n)
			allocations, more := host, ""
			if r.moved {
				allocations = filepath.Join(base, "alloc")
				more = fmt.Sprintf(`mkdir %[1]s
for dir in %[2]s/*; do
  mkdir "%[1]s/${dir##*/}"
  mount --rbind "$dir" "%[1]s/${dir##*/}"
done
mount --rbind %[1]s %[2]s
`, allocations, host)
			}
			n.reshell(t, shell(namespace, more))
			n.restart(t)
			begin(t, namespace, allocations)
		})
	}
	touch(t, trigger)
	for _, r := range residents {
		where := fmt.Sprintf("%s, task of agent %d", r.driver, r.namespace)
		if got := r.ended(t); got != "exit 7" && (got != "lost" || n.tellsExit()) {
			t.Errorf("%s: got %q: %s", where, got, r.story())
		}
		test.Eq(t, r.prints()+"written\nafter\n", r.output(t, "stdout"), test.Sprint(where))
	}
}
