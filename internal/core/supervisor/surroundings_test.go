// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// under returns an option that starts the plugin through a command. The command changes the plugin's surroundings, as
// the settings of a systemd unit would.
func under(command string) func(*plugin) {
	return func(p *plugin) {
		exe, err := os.Executable()
		must.NoError(p.h.t, err)
		p.cmd.Path, p.cmd.Args = "/bin/sh", []string{"sh", "-c", command + ` "$0"`, exe}
	}
}

// mounts returns a command that starts the plugin in a new mount namespace, where dir is bind-mounted at another path.
func mounts(dir, at string) string {
	return fmt.Sprintf(`unshare -m --propagation slave sh -c 'mount --bind %s %s && exec "$0"'`, dir, at)
}

// TestSurroundings_AreTakenOverFromTheNewestPlugin starts a plugin while the supervisor of an earlier plugin, with
// other surroundings, runs a task.
func TestSurroundings_AreTakenOverFromTheNewestPlugin(t *testing.T) {
	testsupport.NeedRoot(t)
	dir := t.TempDir()
	must.NoError(t, os.Chmod(dir, 0o755))
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"view", "one", "two"} {
		must.NoError(t, os.Mkdir(at(name), 0o755))
		must.NoError(t, os.WriteFile(at(name+"/name"), []byte(name+"\n"), 0o644))
	}
	raises := has(t, unix.CAP_SYS_RESOURCE)
	hostname := func(name string) string {
		return fmt.Sprintf(`unshare -u sh -c 'echo %s >/proc/sys/kernel/hostname && exec "$0"'`, name)
	}
	const limits = "ulimit -Sn; ulimit -Hn"
	const bounding, privileges = "grep CapBnd /proc/self/status", "grep NoNewPrivs /proc/self/status"
	cat := "cat " + at("view/name")
	one, two := mounts(at("one"), at("view")), mounts(at("two"), at("view"))
	const few, fewSet = "setpriv --bounding-set=-all,+sys_admin,+sys_chroot,+setpcap", "CapBnd:\t0000000000240100\n"
	const none, set = "NoNewPrivs:\t0\n", "NoNewPrivs:\t1\n"
	limited := func(soft, hard int) (command, printed string) {
		return fmt.Sprintf("prlimit -n%d:%d", soft, hard), fmt.Sprintf("%d\n%d\n", soft, hard)
	}
	limits1, printed1 := limited(300, 1000)
	limits2, printed2 := limited(300, 2000)
	limits3, printed3 := limited(400, 2000)
	name := "cat /proc/sys/kernel/hostname"
	for name, row := range map[string]struct {
		first, second string // commands that start the plugins
		script        string
		one, two      string // the outputs of the two tasks, "" if they depend on the test's own surroundings
		stays         bool   // whether the supervisor's process stays the same
	}{
		"mount namespace":             {one, two, cat, "one\n", "two\n", true},
		"mount namespace of the host": {one, "", cat, "one\n", "view\n", true},
		"host name":                   {hostname("one"), hostname("two"), name, "one\n", "two\n", true},
		"soft limit":                  {limits2, limits3, limits, printed2, printed3, true},
		"lower hard limit":            {limits2, limits1, limits, printed2, printed1, true},
		"higher hard limit":           {limits1, limits2, limits, printed1, printed2, raises},
		"fewer capabilities":          {"", few, bounding, "", fewSet, true},
		"more capabilities":           {few, "", bounding, fewSet, "", false},
		"no_new_privs":                {"", "setpriv --nnp", privileges, none, set, true},
		"new privileges":              {"setpriv --nnp", "", privileges, set, none, false},
	} {
		t.Run(name, func(t *testing.T) {
			eachHolding(t, func(t *testing.T, cgroups bool) {
				h := newHost(t, cgroups)
				trigger := filepath.Join(h.dir, "go")
				first := h.plugin(under(row.first))
				old := first.launch(h.shell(row.script + "; " + waits(trigger, "exit 7")))
				h.waitOutput(old, "first\n")
				supervisor := h.supervisor()
				first.kill()

				second := h.plugin(under(row.second))
				a := second.do(pluginOrder{Adopt: old})
				must.Eq(t, "", a.Error)
				must.True(t, a.Stat.Running)
				now := second.launch(h.shell(row.script + "; echo first"))
				h.waitOutput(now, "first\n")
				test.StrHasPrefix(t, row.one, h.output(old, "stdout"))
				test.StrHasPrefix(t, row.two, h.output(now, "stdout"))
				test.NotEq(t, h.output(old, "stdout"), h.output(now, "stdout"))
				test.Eq(t, row.stays, supervisor == h.supervisor(), test.Sprint("the supervisor's process is the same"))

				must.NoError(t, os.WriteFile(trigger, nil, 0o600))
				a = second.do(pluginOrder{Wait: old.ID})
				must.NotNil(t, a.Exit, must.Sprint(a.Error))
				test.Eq(t, task.Exit{Code: 7}, task.Exit{Code: a.Exit.Code, Signal: a.Exit.Signal, Lost: a.Exit.Lost})
				test.StrHasSuffix(t, "last\n", h.output(old, "stdout"))
				second.kill()
				c := h.client()
				h.destroy(c, old.ID)
				h.destroy(c, now.ID)
			})
		})
	}
}

// has reports whether this process has a capability.
func has(t *testing.T, capability int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	must.NoError(t, unix.Capget(&header, &sets[0]))
	return sets[capability/32].Effective&(1<<(capability%32)) != 0
}

// TestSurroundings_SessionEntersItsTasksMountNamespace shows that the sessions of a task enter the mount namespace
// that the task was started in, even under a later supervisor.
func TestSurroundings_SessionEntersItsTasksMountNamespace(t *testing.T) {
	testsupport.NeedRoot(t)
	h := newHost(t, withCgroup)
	view := filepath.Join(h.dir, "view")
	var tasks []*task.State
	names := []string{"one", "two", "three"}
	for _, name := range append(names, "view") {
		must.NoError(t, os.Mkdir(filepath.Join(h.dir, name), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(h.dir, name, "name"), []byte(name), 0o644))
	}
	for _, name := range names {
		p := h.plugin(under(mounts(filepath.Join(h.dir, name), view)))
		tasks = append(tasks, p.launch(h.shell("echo first; exec sleep 1000")))
		h.waitOutput(tasks[len(tasks)-1], "first\n")
		p.kill()
	}
	c := h.client()
	for _, st := range tasks {
		_, err := c.Adopt(ctx(t), st)
		must.NoError(t, err)
	}
	see := func(when string) {
		t.Helper()
		for i, st := range tasks {
			ended, out := h.session(c, st.ID, "cat "+view+"/name")
			b, err := io.ReadAll(out)
			must.NoError(t, err)
			test.Eq(t, names[i], string(b), test.Sprint(when))
			<-ended
		}
	}
	see("after the supervisor took over other surroundings")
	h.kill(h.supervisor(), unix.SIGKILL)
	h.isServed(c)
	see("after the supervisor was killed")
	for _, st := range tasks {
		h.destroy(c, st.ID)
	}
}

// TestSurroundings_DoNotIncludeScheduling shows that a plugin's scheduling does not affect its tasks.
func TestSurroundings_DoNotIncludeScheduling(t *testing.T) {
	testsupport.NeedRoot(t)
	const script = `nice; chrt -p $$ | sed 's/.*: //'; ionice -p $$ | cut -d: -f1; taskset -p $$ | sed 's/.*: //'
		cat /proc/$$/personality; umask`
	// run returns the output of a task whose plugin was started by command, and the output of a later ordinary task
	run := func(t *testing.T, cgroups bool, command string) (got, next string) {
		h := newHost(t, cgroups)
		for _, c := range []string{command, ""} {
			p := h.plugin(under(c))
			st := p.launch(h.shell(script))
			a := p.do(pluginOrder{Wait: st.ID})
			must.NotNil(t, a.Exit, must.Sprint(a.Error))
			must.Eq(t, "", h.output(st, "stderr"))
			got, next = next, h.output(st, "stdout")
			p.kill()
			h.destroy(h.client(), st.ID)
		}
		return got, next
	}
	eachHolding(t, func(t *testing.T, cgroups bool) {
		want, _ := run(t, cgroups, "")
		test.StrHasPrefix(t, "0\nSCHED_OTHER\n0\n", want)
		for name, command := range map[string]string{
			"nice":     "nice -n 5",
			"taskset":  "taskset -c 0",
			"ionice":   "ionice -c 3",
			"batch":    "chrt -b 0",
			"realtime": "chrt -r 10",
			"setarch":  "setarch -R",
			"umask":    "umask 077 && exec",
		} {
			got, next := run(t, cgroups, command)
			test.Eq(t, want, got, test.Sprint(name))
			test.Eq(t, want, next, test.Sprint("after ", name))
		}
	})
}

// If a supervisor can be neither upgraded nor killed, it keeps its surroundings and serves the running tasks. The
// plugin does not retry endlessly.
func TestSurroundings_StayIfTheSupervisorCannotBeKilled(t *testing.T) {
	testsupport.NeedRoot(t)
	h := newHost(t, withCgroup)
	first := h.plugin()
	old := first.launch(h.shell("echo first; exec sleep 1000"))
	supervisor := h.supervisor()
	first.kill()
	second := h.plugin(under("unshare -pf --kill-child --mount-proc"))
	a := second.do(pluginOrder{Adopt: old})
	must.Eq(t, "", a.Error)
	test.True(t, a.Stat.Running)
	test.Eq(t, supervisor, h.supervisor())
	second.kill()
	h.destroy(h.client(), old.ID)
}

// If the kernel refuses to execute the first binary, the client tries the next binary.
func TestSurroundings_AreTakenOverEvenIfTheFirstBinaryFails(t *testing.T) {
	testsupport.NeedRoot(t)
	h := newHost(t, withCgroup)
	first := h.plugin(under("unshare -m --propagation slave"))
	old := first.launch(h.shell("echo first; exec sleep 1000"))
	supervisor := h.supervisor()
	first.kill()
	good := binaries
	t.Cleanup(func() { binaries = good })
	binaries = append([]func() (*os.File, error){func() (*os.File, error) { return openHigh("/etc/passwd") }}, good...)
	c := h.client()
	_, err := c.Adopt(ctx(t), old)
	must.NoError(t, err)
	test.Eq(t, supervisor, h.supervisor())
	test.NoError(t, c.settle(ctx(t)))
	h.destroy(c, old.ID)
}

func TestUpgrade_FailureDoesNotChangeTheLimitsOfTasks(t *testing.T) {
	h := newHost(t, withoutCgroup)
	p := h.plugin(under("prlimit -n300:2000"))
	before := p.launch(h.shell("ulimit -Sn; echo first; exec sleep 1000"))
	h.waitOutput(before, "first\n")
	w, err := dialOwn(h.store)
	must.NoError(t, err)
	c := &conversation{t: t, wire: w, dir: h.dir}
	c.say(mustJSON(t, wire.Message[request]{Seq: 1, FDs: 1, Body: request{Op: opUpgrade, Build: "another"}}), 0,
		files(t, opUpgrade)...)
	w.Shut()
	after := p.launch(h.shell("ulimit -Sn; echo first"))
	h.waitOutput(after, "first\n")
	test.Eq(t, h.output(before, "stdout"), h.output(after, "stdout"))
	p.kill()
	last := h.client()
	h.destroy(last, before.ID)
	h.destroy(last, after.ID)
}
