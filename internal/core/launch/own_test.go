// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// taskDir makes an allocation's directory below parent, and in it the directory of a task, which it returns.
func taskDir(t testing.TB, parent string) string {
	t.Helper()
	alloc, err := os.MkdirTemp(parent, "outrider-launch-")
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(alloc) })
	must.NoError(t, os.Chmod(alloc, 0o755))
	must.NoError(t, os.Mkdir(alloc+"/task", 0o755))
	must.NoError(t, os.Chmod(alloc+"/task", 0o777))
	return alloc + "/task"
}

func isolated(script, taskDir string, own task.Isolation) *Spec {
	s := shell(script)
	s.Command.TaskDir, s.Command.Isolation = taskDir, own
	return s
}

func TestIsolation_TmpIsPrivate(t *testing.T) {
	ownHost(t)
	dir := taskDir(t, "/var/lib")
	outside, err := os.MkdirTemp("/tmp", "outrider-host-")
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(outside) })

	spec := isolated("ls -A /tmp /var/tmp; echo x >/tmp/file; cat /var/tmp/file; stat -c %a /tmp; "+
		"findmnt -no OPTIONS /tmp | grep -o 'nosuid,nodev'", dir, task.Isolation{Tmp: true})
	spec.Command.User = &task.User{UID: 65534, GID: 65534}
	test.Eq(t, "/tmp:\n\n/var/tmp:\nx\n1777\nnosuid,nodev\n", mustRun(t, spec).out)
	content, err := os.ReadFile(dir + "/tmp/file")
	test.NoError(t, err)
	test.Eq(t, "x\n", string(content))
}

func TestIsolation_TmpIsRefusedIfTheTaskReplacedIt(t *testing.T) {
	ownHost(t)
	for name, put := range map[string]func(path string) error{
		"a link": func(path string) error { return os.Symlink("/etc", path) },
		"a file": func(path string) error { return os.WriteFile(path, nil, 0o644) },
	} {
		dir := taskDir(t, "/var/lib")
		must.NoError(t, put(filepath.Join(dir, "tmp")))
		_, err := run(isolated("ls /tmp", dir, task.Isolation{Tmp: true}), nil)
		test.ErrorContains(t, err, `failed to open the directory "task/tmp" of the allocation`, test.Sprint(name))
	}
}

func TestIsolation_AllocationInTmpKeepsItsPath(t *testing.T) {
	ownHost(t)
	for _, parent := range tmpDirs {
		dir := taskDir(t, parent)
		spec := isolated("ls -A "+parent+"; echo x >../alloc/file; echo y >/tmp/file; cat $PWD/tmp/file", dir,
			task.Isolation{Tmp: true})
		must.NoError(t, os.Mkdir(dir+"/../alloc", 0o755))
		spec.Command.Dir = dir
		alloc := filepath.Base(filepath.Dir(dir))
		test.Eq(t, alloc+"\ny\n", mustRun(t, spec).out)
		test.FileExists(t, filepath.Dir(dir)+"/alloc/file")

		must.NoError(t, os.RemoveAll(dir+"/tmp"))
		must.NoError(t, os.Mkdir(dir+"/tmp", 0o755))
		must.NoError(t, os.Symlink("/etc", dir+"/tmp/"+alloc))
		_, err := run(spec, nil)
		test.ErrorContains(t, err, "failed to mount the allocation's directory in "+parent, test.Sprint("a link"))
	}
}

func TestIsolation_VolumesCanBeInTheTasksTmp(t *testing.T) {
	ownHost(t)
	dir, source := taskDir(t, "/var/lib"), t.TempDir()
	must.NoError(t, os.WriteFile(source+"/inside", nil, 0o644))
	must.NoError(t, os.MkdirAll(dir+"/tmp/data", 0o777))
	spec := isolated("ls -A /tmp/data", dir, task.Isolation{Tmp: true})
	spec.Command.Mounts = []task.Mount{{Source: source, Target: "/tmp/data", Volume: true}}
	test.Eq(t, "inside\n", mustRun(t, spec).out)
}

func TestIsolation_VolumesCanBeInAnAllocationInTmp(t *testing.T) {
	ownHost(t)
	for _, parent := range append([]string{"/var/lib"}, tmpDirs...) {
		dir, source := taskDir(t, parent), t.TempDir()
		must.NoError(t, os.WriteFile(source+"/inside", nil, 0o644))
		spec := isolated("ls -A data new", dir, task.Isolation{Tmp: true})
		must.NoError(t, os.Mkdir(dir+"/data", 0o777))
		spec.Command.Dir = dir
		spec.Command.Mounts = []task.Mount{{Source: source, Target: dir + "/data", Volume: true},
			{Source: source, Target: dir + "/new", Volume: true}}
		test.Eq(t, "data:\ninside\n\nnew:\ninside\n", mustRun(t, spec).out, test.Sprint(parent))
	}
}

// If /tmp belonged to another user, programs of root, such as crontab, could not trust its sticky bit.
func TestIsolation_TmpBelongsToRoot(t *testing.T) {
	ownHost(t)
	dir := taskDir(t, "/var/lib")
	must.NoError(t, os.Mkdir(dir+"/tmp", 0o777))
	must.NoError(t, os.Chown(dir+"/tmp", 65534, 65534)) // as Nomad or an earlier run of the task may leave it
	spec := isolated("stat -c '%u %g %a' /tmp /var/tmp", dir, task.Isolation{Tmp: true})
	spec.Command.User = &task.User{UID: 65534, GID: 65534}
	test.Eq(t, "0 0 1777\n0 0 1777\n", mustRun(t, spec).out)
}

func TestIsolation_IPCIsPrivate(t *testing.T) {
	ownHost(t)
	must.NoError(t, os.WriteFile("/dev/shm/outrider-host", nil, 0o644))
	t.Cleanup(func() { os.Remove("/dev/shm/outrider-host") })
	host, err := os.Readlink("/proc/thread-self/ns/ipc")
	must.NoError(t, err)
	out := mustRun(t, isolated("readlink /proc/self/ns/ipc; ls -A /dev/shm; stat -c %a /dev/shm; "+
		"ipcmk -Q >/dev/null; ipcs -q | grep -c 0x", "", task.Isolation{IPC: true})).out
	lines := strings.SplitN(out, "\n", 2)
	test.NotEq(t, host, lines[0])
	test.Eq(t, "1777\n1\n", lines[1])
}

func TestIsolation_FilesOfTheTaskHideTheHostsFiles(t *testing.T) {
	ownHost(t)
	own := task.Isolation{Hostname: "web", Files: []task.File{
		{Path: "/etc/hosts", Content: "10.0.0.1 web\n"}, {Path: "/etc/services", Content: ""},
	}}
	out := mustRun(t, isolated("hostname; cat /etc/hosts; wc -c </etc/services; echo x 2>/dev/null >/etc/hosts || "+
		"echo read-only; rm /etc/hosts 2>/dev/null || echo busy", "", own)).out
	test.Eq(t, "web\n10.0.0.1 web\n0\nread-only\nbusy\n", out)
	large := task.Isolation{Files: []task.File{{Path: "/etc/hosts", Content: strings.Repeat("x", 2<<20)}}}
	_, err := run(isolated("true", "", large), nil)
	test.ErrorContains(t, err, `failed to create the task's own /etc/hosts: no space left on device`)
	missing := task.Isolation{Files: []task.File{{Path: "/etc/hosts/none", Content: ""}}}
	_, err = run(isolated("true", "", missing), nil)
	test.ErrorContains(t, err, `"/etc/hosts/none": not a directory`)
}

func TestIsolation_ProcessIDsArePrivate(t *testing.T) {
	ownHost(t)
	spec := &Spec{Init: startInit(t)}
	spec.Command = isolated(`cat /proc/1/comm; echo $PPID; set -- /proc/[0-9]*; echo $#; kill -9 1; cat /proc/1/comm
orphan=$( (sleep 0.01 >/dev/null & echo $!) )
while [ -d /proc/$orphan ] && ! grep -q "^State:.Z" /proc/$orphan/status 2>/dev/null; do :; done
[ -d /proc/$orphan ] && echo zombie || echo reaped
kill -TERM $$; echo not reached`, "", task.Isolation{PID: true}).Command
	e := mustRun(t, spec)
	test.Eq(t, "outrider-init\n0\n2\noutrider-init\nreaped\n", e.out)
	test.Eq(t, unix.SIGTERM, e.status.Signal())
}

// startInit starts an init that stays in the test's cgroups, and returns its pidfd.
func startInit(t testing.TB) int {
	t.Helper()
	init, err := StartInit(nil, nil)
	must.NoError(t, err)
	t.Cleanup(func() { endInit(t, init) })
	return int(init.Fd())
}

func endInit(t testing.TB, init *os.File) {
	t.Helper()
	must.NoError(t, unix.PidfdSendSignal(int(init.Fd()), unix.SIGKILL, nil, 0))
	must.NoError(t, unix.Waitid(unix.P_PIDFD, int(init.Fd()), nil, unix.WEXITED, nil))
	init.Close()
}
