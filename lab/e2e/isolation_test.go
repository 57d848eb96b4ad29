// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/lab/e2e/features"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// TestFeatures_OfNomadsDriversWork runs, for each feature, a job that uses it and a job that does not. In lab/e2e/vm,
// TestFeatures_WorkOnCgroupV2 runs the same jobs in a virtual machine.
func TestFeatures_OfNomadsDriversWork(t *testing.T) {
	testsupport.Long(t, "one job with each of many options")
	t.Parallel()
	needRootAgent(t)
	for _, file := range features.Files {
		touch(t, file)
		t.Cleanup(func() { os.Remove(file) })
	}
	n := commonNode.get(t)
	for _, c := range features.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			a := n.submit(t, c.Job)
			test.Eq(t, "exit 0", a.ended(t), test.Sprint(a.story()))
			test.Eq(t, c.Want, strings.TrimSpace(a.output(t, "stdout")), test.Sprint(a.output(t, "stderr")))
		})
	}
}

// TestFeatures_SignalsReachATaskInAPIDNamespace checks that a task can handle SIGHUP. This is an intended
// difference from exec2 0.1.2, where the signal ends the task.
func TestFeatures_SignalsReachATaskInAPIDNamespace(t *testing.T) {
	t.Parallel()
	n := commonNode.get(t)
	a := n.start(t, sh("trap 'echo got HUP' HUP; trap 'exit 0' INT; echo ready; while :; do sleep 0.01; done").
		with(conf{"isolate": []string{"pid"}}))
	a.says(t, "stdout", "ready")
	must.NoError(t, n.Client().Allocations().Signal(a.stub(t), nil, "main", "SIGHUP"))
	a.says(t, "stdout", "got HUP")
	a.stop(t)
	test.Eq(t, "exit 0", a.outcome())
}

func TestFeatures_DynamicUserStaysAfterARestartOfTheAgent(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t)
	n := newNode(t, nodeOptions{plugin: "dynamic_users = true\n"})
	a := n.start(t, sh("id -u >>$NOMAD_TASK_DIR/users; cat $NOMAD_TASK_DIR/users; exec sleep 1000"))
	a.says(t, "stdout", "\n")
	user := strings.TrimSpace(a.output(t, "stdout"))
	id, err := strconv.Atoi(user)
	must.NoError(t, err)
	test.Between(t, 80000, id, 89999)
	n.restart(t)
	must.NoError(t, n.Client().Allocations().Restart(a.stub(t), "main", nil))
	a.says(t, "stdout", user+"\n"+user+"\n"+user+"\n") // one line from the first run, two from the second
	a.stop(t)
}

// confined returns confinedNode, or skips the test if this machine can't confine tasks.
func confined(t *testing.T) *node {
	t.Helper()
	needLandlock(t)
	return confinedNode.get(t)
}

// TestFeatures_EscapesAreDenied attacks a task and the host from another task, its session and its template's script.
// Some attacks work without isolation. Each part of isolation denies some attacks, and all parts together deny all.
func TestFeatures_EscapesAreDenied(t *testing.T) {
	n := confined(t)
	works := map[string]bool{
		"read another task's file": true, "read it by ..": true, "read it by a link": true, "change it": true,
		"signal another task": true, "signal every process": false, "read another task's maps": true,
		"read another task's environment": true, "see another task": true, "trace another task": traceable(),
		"list the host's files": true, "list them by the init": false, "see the host's /tmp": true,
		"enter a user namespace": true, "enter the host's namespaces": false, "create a device node": false, "mount": false,
		"raise a hard limit": false, "become root by a set-user-ID program": true,
		"see the record of its exit": false, // with exec2 0.1.2, a task can write this record
	}
	test.Eq(t, works, attack(t, commonNode.get(t), asUser("nobody")), test.Sprint("without isolation"))
	denied := map[string]bool{}
	for attempt := range works {
		denied[attempt] = false
	}
	test.Eq(t, denied, attack(t, n))
	inTmp := []string{"read another task's file", "read it by ..", "read it by a link", "change it", "see the host's /tmp"}
	for _, part := range []struct {
		config conf
		denied []string
	}{
		{conf{"isolate": []string{"tmp"}}, inTmp}, // a private /tmp hides the agent's directory, which is in /tmp
		{conf{"isolate": []string{"pid"}}, []string{"signal another task", "read another task's maps",
			"read another task's environment", "see another task", "trace another task"}},
		{conf{"no_new_privs": true}, []string{"become root by a set-user-ID program"}},
	} {
		want := maps.Clone(works)
		for _, attempt := range part.denied {
			want[attempt] = false
		}
		test.Eq(t, want, attack(t, commonNode.get(t), asUser("nobody"), func(_ *api.Job, task *api.Task) {
			for name, value := range part.config {
				task.SetConfig(name, value)
			}
		}), test.Sprint(part.config))
	}
	refused := map[string]*alloc{}
	for _, user := range []string{"root", "0", "00", "root:nogroup", ":0", "nobody:root", "nobody:0"} {
		refused["user "+user] = n.submit(t, job(t, sh("true"), func(_ *api.Job, task *api.Task) { task.User = user }))
	}
	for _, group := range []string{"root", "0", "00"} {
		refused["group "+group] = n.submit(t, job(t, sh("true").with(conf{"groups": []string{group}})))
	}
	refused["capability"] = n.submit(t, job(t, sh("true").with(conf{"cap_add": []string{"sys_admin"}})))
	for name, a := range refused {
		test.Eq(t, "", a.ended(t), test.Sprint(name))
	}
}

// traceable reports whether a process may trace another process of its user (Documentation/admin-guide/LSM/Yama.rst).
func traceable() bool {
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	return err != nil || strings.TrimSpace(string(scope)) == "0"
}

// attack starts a task, and a second one that attacks it: as its main process, in a session and in a template's script.
// It returns for each attempt whether one of these succeeded.
func attack(t *testing.T, n *node, edit ...func(*api.Job, *api.Task)) map[string]bool {
	t.Helper()
	victim := n.start(t, sh("umask 0; echo secret >$NOMAD_TASK_DIR/secret; exec sleep 1000"), edit...)
	defer victim.stop(t)
	secret := victim.dir() + "/main/local/secret"
	testsupport.Eventually(t, "the victim has its secret", func() bool { return testsupport.Exists(secret) })
	pid := n.stateOf(t, victim.id).Identity.PID
	script := strings.NewReplacer("SECRET", secret, "VICTIM", victim.dir(), "PID", strconv.Itoa(pid), "TMP", nomadBinary,
		"STORE", n.store(), "SEIZE", fmt.Sprintf("%d, %d", unix.SYS_PTRACE, unix.PTRACE_SEIZE)).
		Replace(`
try() { eval "$2" >/dev/null 2>&1 && echo "$1: yes" || echo "$1: no"; }
try "read another task's file" "cat SECRET"
try "read it by .." "cat $NOMAD_TASK_DIR/../../../` + victim.id + `/main/local/secret"
try "read it by a link" "ln -sf VICTIM $NOMAD_TASK_DIR/link; cat $NOMAD_TASK_DIR/link/main/local/secret"
try "change it" "echo >>SECRET"
try "signal another task" "kill -0 PID"
try "signal every process" "kill -0 1"
try "read another task's maps" "cat /proc/PID/maps"
try "read another task's environment" "cat /proc/PID/environ"
try "see another task" "ls /proc/PID"
try "trace another task" "perl -e 'exit(syscall(SEIZE, PID, 0, 0) != 0)'"
try "list the host's files" "ls /home"
try "list them by the init" "ls /proc/1/root/home"
try "see the host's /tmp" "ls TMP"
try "enter a user namespace" "unshare -U true"
try "enter the host's namespaces" "nsenter -t 1 -m true"
try "create a device node" "mknod $NOMAD_TASK_DIR/null c 1 3"
try "mount" "mount -t tmpfs tmpfs $NOMAD_TASK_DIR"
try "raise a hard limit" "(ulimit -Hn 99999999)"
try "see the record of its exit" "ls STORE/tasks"
until [ -u $NOMAD_TASK_DIR/id ]; do sleep 0.05; done
try "become root by a set-user-ID program" '[ $($NOMAD_TASK_DIR/id -u) = 0 ]'
`)
	const last = "become root by a set-user-ID program: "
	j := job(t, sh(script+"exec sleep 1000"), edit...)
	rerun := runsAtChange(t, n, j, "exec >$NOMAD_TASK_DIR/script;"+script)
	a := n.submit(t, j)
	a.running(t)
	defer a.stop(t)
	setUserID(t, "id", a.dir()+"/main/local/id")
	a.says(t, "stdout", last)
	_, out, _ := a.session(t, false, nil, nil, "/bin/sh", "-c", script)
	results := a.output(t, "stdout") + out + rerun(a.dir()+"/main/local/script", last)
	succeeded, tried := map[string]bool{}, map[string]int{}
	for line := range strings.Lines(results) {
		attempt, result, _ := strings.Cut(strings.TrimSpace(line), ": ")
		succeeded[attempt] = succeeded[attempt] || result == "yes"
		tried[attempt]++
	}
	for attempt, times := range tried {
		test.Eq(t, 3, times, test.Sprint(attempt))
	}
	return succeeded
}

// setUserID makes a set-user-ID copy of one of root's programs, so every user runs it as root.
func setUserID(t *testing.T, program, path string) {
	t.Helper()
	from, err := exec.LookPath(program)
	must.NoError(t, err)
	content, err := os.ReadFile(from)
	must.NoError(t, err)
	syscall.ForkLock.RLock() // see writeShell
	err = os.WriteFile(path, content, 0o755)
	syscall.ForkLock.RUnlock()
	must.NoError(t, err)
	must.NoError(t, os.Chmod(path, os.ModeSetuid|0o755))
}

// runsAtChange gives a job's task a template whose change runs a script in the task. The returned function causes
// a change, waits until a file on the host contains text, and returns the file's content.
func runsAtChange(t *testing.T, n *node, j *api.Job, script string) func(file, text string) string {
	t.Helper()
	set := func(value string) {
		v := &api.Variable{Path: "nomad/jobs/" + *j.ID, Items: map[string]string{"value": value}}
		_, _, err := n.Client().Variables().Update(v, nil)
		must.NoError(t, err)
	}
	set("old")
	task := j.TaskGroups[0].Tasks[0]
	task.Templates = append(task.Templates, &api.Template{
		EmbeddedTmpl: new(`{{ with nomadVar "nomad/jobs/` + *j.ID + `" }}{{ .value }}{{ end }}`),
		DestPath:     new("local/value"), ChangeMode: new("script"), Splay: new(time.Duration(0)),
		ChangeScript: &api.ChangeScript{Command: new("/bin/sh"), Args: []string{"-c", script}, Timeout: new(time.Minute)},
	})
	return func(file, text string) (content string) {
		t.Helper()
		set("new")
		testsupport.Within(t, 2*time.Minute, func() error {
			b, err := os.ReadFile(file)
			content = string(b)
			if err == nil && !strings.Contains(content, text) {
				err = fmt.Errorf("the template's script has written %q", content)
			}
			return err
		})
		return content
	}
}

// TestFeatures_ScriptsRunInTheTask runs the same script as a confined task, in a session (`nomad alloc exec`) and for a
// template. Script checks of Consul services run like the script of a template. Nomad's services have no script checks.
func TestFeatures_ScriptsRunInTheTask(t *testing.T) {
	n := confined(t)
	const last = "write to /tmp: yes\n"
	script := `
for kind in ipc mnt pid; do readlink /proc/self/ns/$kind; done
grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status
cat /proc/1/comm
ls -d /tmp/f* /dev/shm/*
ls /home 2>/dev/null || echo "no /home"
touch /tmp/file && echo "write to /tmp: yes"
`
	j := job(t, sh("touch /tmp/file /dev/shm/file;"+script+"exec sleep 1000").
		with(conf{"unveil": []string{"r:/proc"}})) // the task's own /proc
	rerun := runsAtChange(t, n, j, "exec >$NOMAD_TASK_DIR/script;"+script)
	a := n.submit(t, j)
	a.running(t)
	a.says(t, "stdout", last)
	want := a.output(t, "stdout")
	for _, kind := range []string{"ipc", "mnt", "pid"} {
		host, err := os.Readlink("/proc/self/ns/" + kind)
		must.NoError(t, err)
		test.StrNotContains(t, want, host)
	}
	test.StrContains(t, want, "NoNewPrivs:\t1\nSeccomp:\t2\noutrider-init\n/dev/shm/file\n/tmp/file\nno /home\n")
	test.StrContains(t, want, "CapEff:\t0000000000000000\n")
	_, out, errOut := a.session(t, false, nil, nil, "/bin/sh", "-c", script)
	test.Eq(t, want, out, test.Sprint("in a session:", errOut))
	test.Eq(t, want, rerun(a.dir()+"/main/local/script", last), test.Sprint("in a template's script"))
	test.FileExists(t, a.dir()+"/main/tmp/file")
	a.stop(t)
}

// TestFeatures_MountsStayInTheTask mounts file systems as root, in a task and in a session. Only without isolation do
// the mounts appear on the host.
func TestFeatures_MountsStayInTheTask(t *testing.T) {
	testsupport.Long(t, "its mounts could stay on the machine")
	t.Parallel()
	needRootAgent(t)
	n := commonNode.get(t)
	const script = `mount -t tmpfs -o size=64k outrider-e2e DIR && touch DIR/inside; ls DIR; echo end;`
	inTask := strings.ReplaceAll(script, "DIR", "$NOMAD_TASK_DIR")
	inSession := strings.ReplaceAll(script, "DIR", "$NOMAD_ALLOC_DIR/data")
	other := n.start(t, sh("exec sleep 1000").with(conf{"isolate": []string{"ipc"}}))
	for _, row := range []struct {
		name       string
		config     conf
		task, host bool // whether the task and the host see the mounts
	}{
		{"the host's mounts", conf{}, true, true},
		{"own /tmp", conf{"isolate": []string{"tmp"}}, true, false},
		{"own IPC", conf{"isolate": []string{"ipc"}}, true, false},
		{"own process ids", conf{"isolate": []string{"pid"}}, true, false},
		{"without capabilities", conf{"isolate": []string{"ipc"}, "cap_drop": []string{"all"}}, false, false},
	} {
		before := "mount --make-rshared /; "
		if row.host {
			before = ""
		}
		a := n.start(t, sh(before+inTask+"exec sleep 1000").with(row.config))
		at := []string{a.dir() + "/main/local", a.dir() + "/alloc/data"}
		a.says(t, "stdout", "end\n")
		_, out, errOut := a.session(t, false, nil, nil, "/bin/sh", "-c", inSession)
		for i, out := range []string{a.output(t, "stdout"), out} {
			test.Eq(t, row.task, strings.Contains(out, "inside\n"), test.Sprint(row.name, out, errOut))
			test.Eq(t, row.host, testsupport.Exists(at[i]+"/inside"), test.Sprint(row.name, "on the host at", at[i]))
			_, out, _ = other.session(t, false, nil, nil, "ls", at[i])
			test.Eq(t, row.host, strings.Contains(out, "inside\n"), test.Sprint(row.name, "in another task at", at[i]))
			_ = unix.Unmount(at[i], unix.MNT_DETACH)
		}
		a.stop(t)
	}
	other.stop(t)
}

// TestFeatures_LinksOfATaskAreNotFollowed restarts a task that has put symbolic links at paths where the driver, as
// root, writes or mounts when it starts the task.
func TestFeatures_LinksOfATaskAreNotFollowed(t *testing.T) {
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t)
	config := fmt.Sprintf("client {\n  host_volume \"data\" {\n    path = %q\n  }\n}\n", mkdir(t))
	n := newNode(t, nodeOptions{config: config})
	for _, row := range []struct{ name, place, to, refused string }{
		{"log file", "$NOMAD_ALLOC_DIR/logs/main.stdout.0", "/file", ""},
		{"next log file", "$NOMAD_ALLOC_DIR/logs/main.stdout.1", "/new", ""},
		{"log directory", "$NOMAD_ALLOC_DIR/logs", "", "failed to open log directory"},
		{"directory of /tmp", "$NOMAD_TASK_DIR/../tmp", "", `failed to open the directory "main/tmp"`},
		{"directory above a volume", "$NOMAD_TASK_DIR/sub", "", `/main/local/sub" is not a directory`},
	} {
		host := mkdir(t) // only root can write in it
		must.NoError(t, os.WriteFile(host+"/file", []byte("root's"), 0o600))
		script := strings.NewReplacer("PLACE", row.place, "TO", host+row.to).Replace(`
cd $NOMAD_TASK_DIR
[ -e planted ] && touch again && echo again && exec sleep 1000
mv PLACE PLACE.old 2>/dev/null; ln -s TO PLACE; touch planted; exec sleep 1000`)
		a := n.start(t, sh(script).with(conf{"isolate": []string{"tmp"}}), asUser("nobody"),
			nomadtest.WithVolume("data", "local/sub/data"))
		local := a.dir() + "/main/local"
		testsupport.Eventually(t, "the link is there", func() bool { return testsupport.Exists(local + "/planted") })
		must.NoError(t, n.Client().Allocations().Restart(a.stub(t), "main", nil))
		if row.refused == "" {
			testsupport.Eventually(t, "the task runs again", func() bool { return testsupport.Exists(local + "/again") })
			a.stop(t)
			logs, err := exec.Command("sh", "-c", "cd "+a.dir()+"/alloc/logs && find . -type f | xargs cat").Output()
			must.NoError(t, err)
			test.Eq(t, "again\n", string(logs), test.Sprint(row.name))
		} else {
			a.ended(t)
			test.NoError(t, a.tells(row.refused), test.Sprint(row.name))
			test.False(t, testsupport.Exists(local+"/again"), test.Sprint(row.name))
		}
		files, err := os.ReadDir(host)
		must.NoError(t, err)
		test.SliceLen(t, 1, files, test.Sprint(row.name))
		content, err := os.ReadFile(host + "/file")
		must.NoError(t, err)
		test.Eq(t, "root's", string(content), test.Sprint(row.name))
	}
}

// needLandlock skips the test in quick runs, and on a machine that can't confine tasks.
func needLandlock(t *testing.T) {
	t.Helper()
	testsupport.Long(t, "needs its own node")
	t.Parallel()
	needRootAgent(t)
	if landlock.ABI() < landlock.Complete {
		t.Skip("this kernel's Landlock can't restrict truncation")
	}
}

// unveilNode returns a node that confines tasks, and a directory with the files open/file and hidden/file.
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
	a := n.start(t, sh(attempts+"exec sleep 1000").with(conf{"unveil": []string{"r:" + dir + "/open"}}), asUser("nobody"))
	a.says(t, "stdout", "denied\ndenied\n")
	test.Eq(t, want, a.output(t, "stdout"), test.Sprint(a.output(t, "stderr")))
	attempts = strings.Replace(attempts, ">/dev/stdout", "", 1) // in a session, root owns /dev/stdout
	_, out, _ := a.session(t, false, nil, nil, "/bin/sh", "-c", attempts)
	test.Eq(t, want, out)
	a.stop(t)

	a = n.submit(t, job(t, sh("true").with(conf{"unveil": []string{"r:" + dir + "/missing"}}), asUser("nobody")))
	test.Eq(t, "", a.ended(t), test.Sprint("the task must not start"))
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
