// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/build"
)

// surrounding is one row: what a task prints, as lines "name=value", with each driver.
type surrounding struct {
	name   string
	script string
	conf   conf // of our drivers alone
	edit   []func(*api.Job, *api.Task)

	// want has the lines with our drivers. $name stands for a line of /proc/<pid>/status of the agent, $nice for its
	// nice value, $cpus for all processors and $io for the class of a process that has none.
	want string

	// raw has the lines that differ with raw_exec, written as those of want are; "-" leaves it out.
	raw string

	// rawSession has those that differ in its `alloc exec` again.
	rawSession string
}

// agentStart is a start of the agent, and the rows of tasks that this agent starts. Tasks of the starts before run on.
type agentStart struct {
	shell string // see nodeOptions
	rows  []surrounding
}

// unitVariables are set by systemd for the unit alone.
var unitVariables = []string{"NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDS", "LISTEN_PID",
	"WATCHDOG_USEC", "SYSTEMD_EXEC_PID", "CREDENTIALS_DIRECTORY", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"}

// each has a line for each of the variables.
func each(format string, names ...string) string {
	var lines []string
	for _, name := range names {
		lines = append(lines, fmt.Sprintf(format, name))
	}
	return strings.Join(lines, "\n")
}

const printVariable = `echo "%[1]s=$(printenv %[1]s || echo unset)"`

// status prints fields of /proc/self/status.
func status(fields ...string) string {
	return each("sed -n 's/^%[1]s:[[:space:]]*/%[1]s=/p' /proc/self/status", fields...)
}

var (
	priorities = surrounding{name: "3: priorities",
		script: `echo "nice=$(nice)"
echo "io=$(ionice)"
echo "policy=$(chrt -p $$ | sed -n 's/.*policy: //p')"
` + status("Cpus_allowed_list"),
		want: "nice=0\nio=$io\npolicy=SCHED_OTHER\nCpus_allowed_list=$cpus",
		raw:  "nice=$nice\nio=best-effort: prio 7\nCpus_allowed_list=0",
	}
	plain = surrounding{name: "3: priorities without any", script: priorities.script, want: priorities.want,
		raw: "nice=$nice"}
	hardened = surrounding{name: "2: rights and limits",
		script: status("CapBnd", "NoNewPrivs") + "\necho nofile=$(ulimit -Hn)",
		want:   "CapBnd=$CapBnd\nNoNewPrivs=$NoNewPrivs\nnofile=$nofile",
	}
)

// surroundings are the rows of issue 25, but for number 1, see testMounts, and for number 5, the session keyring, which
// is internal/core/launch's.
func surroundings() map[string][]agentStart {
	return map[string][]agentStart{
		"root": {
			{
				shell: each("export %s=/agent", unitVariables...) + `
umask 0002
set -- setarch "$(uname -m)" -R env --block-signal=USR2 --ignore-signal=HUP,QUIT "$@"
set -- prlimit --nofile=1024:1024 nice -n 5 taskset -c 0 ionice -c 2 -n 7 "$@"`,
				rows: []surrounding{
					priorities,
					{name: "4: variables of the agent's unit", script: each(printVariable, unitVariables...),
						want: each("%s=unset", unitVariables...),
						raw:  each("%s=/agent", unitVariables[1:]...)}, // Nomad itself takes the first away
					{name: "4 and 6: variables of the job", script: each(printVariable, "NOTIFY_SOCKET", "HOME"),
						edit: asUsers("nobody", func(_ *api.Job, task *api.Task) {
							task.Env = map[string]string{"NOTIFY_SOCKET": "/job", "HOME": "/root/of/the/job"}
						}),
						want:       "NOTIFY_SOCKET=/job\nHOME=/root/of/the/job",
						rawSession: "HOME=/nonexistent"},
					{name: "7: inherited by each process", script: `echo "umask=$(umask)"
echo "personality=$(cat /proc/self/personality)"
` + status("SigBlk", "SigIgn"),
						want: "umask=0022\npersonality=00000000\nSigBlk=0000000000000000\nSigIgn=0000000000000000",
						raw:  "umask=0002\npersonality=00040000"},
				},
			},
			{
				shell: `set -- prlimit --nofile=2048:2048 setpriv --bounding-set=-sys_time,-sys_boot --no-new-privs "$@"`,
				rows: []surrounding{hardened, plain,
					{name: "2: limit below the agent's new one", script: "echo nofile=$(ulimit -Hn)",
						conf: conf{"ulimit": conf{"nofile": "1500"}}, want: "nofile=1500", raw: "-"},
				},
			},
			{
				shell: `set -- prlimit --nofile=1200:1200 "$@"`,
				rows:  []surrounding{hardened},
			},
		},
		"real time": {
			{shell: `set -- chrt -r 10 "$@"`, rows: []surrounding{{name: "3: real-time policy", script: priorities.script,
				want: priorities.want, raw: "-"}}}, // raw_exec starts no task then on cgroup v1
			{shell: ":", rows: []surrounding{plain}},
		},
		"not root": {{
			// no interpreter below /root, which the agent may read and its tasks may not
			shell: "unset PYENV_ROOT\nexport HOME=/\n" + strings.NewReplacer(
				"--bounding-set=-all", "--bounding-set=-all,+dac_read_search",
				"--inh-caps=-all", "--inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search").Replace(unprivileged),
			rows: []surrounding{{name: "7: ambient capabilities",
				script: status("CapInh", "CapPrm", "CapEff", "CapAmb") +
					"\nif head -c 1 /etc/shadow >/dev/null 2>&1; then echo shadow=read; else echo shadow=refused; fi",
				want: each("%s=0000000000000000", "CapInh", "CapPrm", "CapEff", "CapAmb") + "\nshadow=refused",
				raw:  each("%s=0000000000000004", "CapInh", "CapPrm", "CapEff", "CapAmb") + "\nshadow=read"}},
		}},
	}
}

// asUsers is a list with asUser.
func asUsers(name string, more ...func(*api.Job, *api.Task)) []func(*api.Job, *api.Task) {
	return append(more, asUser(name))
}

// TestSurroundings_AreThoseOfTheAgentThatStartsTheTask or are defined: never those of an agent before it, whose
// supervisor still runs.
func TestSurroundings_AreThoseOfTheAgentThatStartsTheTask(t *testing.T) {
	needRootAgent(t)
	t.Parallel()
	for _, driver := range []string{"exec-lite", "python"} {
		t.Run(driver+", 1: mount namespace", func(t *testing.T) {
			t.Parallel()
			testMounts(t, driver, nodeOptions{}, restarts)
		})
		for name, starts := range surroundings() {
			t.Run(driver+", "+name, func(t *testing.T) {
				t.Parallel()
				n := newNode(t, withDriver(driver, nodeOptions{shell: starts[0].shell, bare: name == "not root"}))
				for i, s := range starts {
					if i > 0 {
						stop(t, n)
						n.reshell(t, s.shell)
						n.restart(t)
					}
					n.surround(t, s.rows)
				}
			})
		}
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

// surround runs the rows with the node's driver and raw_exec, and compares what the task and then `alloc exec` print.
// The tasks go on.
func (n *node) surround(t *testing.T, rows []surrounding) {
	t.Helper()
	type cell struct {
		surrounding
		driver string
		alloc  *alloc
		want   map[string]string
	}
	facts := n.facts(t)
	var cells []cell
	for _, row := range rows {
		for _, driver := range []string{n.driver, "raw_exec"} {
			c := scripted(driver, row.script+"\necho printed=all\nexec sleep 1000")
			fill := func(text string) map[string]string {
				return lines(os.Expand(text, func(name string) string { return facts[name] }))
			}
			want := fill(row.want)
			if driver == "raw_exec" {
				if row.raw == "-" {
					continue
				}
				maps.Copy(want, fill(row.raw))
			} else {
				c = c.with(row.conf)
			}
			want["printed"] = "all"
			edit := append([]func(*api.Job, *api.Task){asDriver(driver), withMemory(48)}, row.edit...)
			cells = append(cells, cell{row, driver, n.submit(t, job(t, c, edit...)), want})
		}
	}
	keyrings := map[string][]string{}
	for _, c := range cells {
		where := c.driver + ", " + c.name
		got := lines(c.alloc.printed(t))
		if len(got) == 0 {
			complaint, _ := c.alloc.read("stderr")
			t.Errorf("%s: no output: %s: %s", where, c.alloc.story(), complaint)
			continue
		}
		if session, ok := got["session"]; ok {
			keyrings[c.driver] = append(keyrings[c.driver], session)
			delete(got, "session")
		}
		same(t, where, c.want, got)
		out, err := c.alloc.inside(t, c.script+"\necho printed=all")
		test.NoError(t, err, test.Sprint(where))
		if c.driver == "raw_exec" {
			maps.Copy(c.want, lines(c.rawSession))
		}
		same(t, where+", alloc exec", c.want, lines(out))
	}
	for driver, found := range keyrings {
		if shared := len(slices.Compact(slices.Sorted(slices.Values(found)))) < len(found); shared != (driver == "raw_exec") {
			t.Errorf("%s: tasks share a session keyring: %v: %q", driver, shared, found)
		}
	}
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

// facts are what the agent has, by the names in /proc/<pid>/status, by $nice and by $nofile, and what a process has by
// default.
func (n *node) facts(t *testing.T) map[string]string {
	t.Helper()
	run := func(argv ...string) string {
		out, err := exec.Command(argv[0], argv[1:]...).Output()
		must.NoError(t, err, must.Sprint(argv))
		return strings.TrimSpace(string(out))
	}
	pid, err := n.PID(t.Context())
	must.NoError(t, err)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.NoError(t, err)
	values := map[string]string{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		values[name] = strings.TrimSpace(value)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	must.NoError(t, err)
	_, files, _ := strings.Cut(string(limits), "Max open files")
	must.SliceNotEmpty(t, strings.Fields(files))
	values["nofile"] = strings.Fields(files)[1] // the hard one
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	must.NoError(t, err)
	values["nice"] = strconv.Itoa(20 - priority) // see getpriority(2), under "C library/kernel differences"
	values["io"] = run("ionice")
	// the kernel takes those that this process's cpuset does not have away
	_, values["cpus"], _ = strings.Cut(run("taskset", "-c", "0-1023", "grep", "Cpus_allowed_list", "/proc/self/status"),
		"\t")
	return values
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

// TestSurroundings_AreTheNewAgentsAfterAnUpgrade: the supervisor that is replaced is of the version before this was so.
func TestSurroundings_AreTheNewAgentsAfterAnUpgrade(t *testing.T) {
	testsupport.Long(t, "a version before is built")
	needRootAgent(t)
	t.Parallel()
	binaries, err := makeBefore()
	must.NoError(t, err)
	for driver, binary := range map[string]string{"exec-lite": execLite, "python": python} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			testMounts(t, driver, nodeOptions{binaries: binaries}, []restart{
				{name: "plugin replaced", stop: func(t *testing.T, n *node) {
					stop(t, n)
					must.NoError(t, n.ReplacePlugin(t.Context(), binary))
				}},
				restarts[0],
			})
		})
	}
}

// beforeSurroundings is the last commit whose supervisor started each task in its own surroundings.
const beforeSurroundings = "4b6a6c8"

// makeBefore builds the drivers of that commit, and returns their directory.
var makeBefore = sync.OnceValues(func() (string, error) {
	root, err := build.Root(".")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(scratch, "before")
	clone := filepath.Join(dir, "clone")
	for _, args := range [][]string{{"clone", "--quiet", "--shared", "--no-tags", "--no-checkout", root, clone},
		{"-C", clone, "checkout", "--quiet", "--detach", beforeSurroundings}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("git %q: %w\n%s", args, err, out)
		}
	}
	bin := filepath.Join(dir, "bin")
	_, err = build.Builder{Root: clone, Bin: bin}.All(context.Background(), "exec-lite", "python")
	return bin, errors.Join(err, os.RemoveAll(clone))
})

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
