// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// share replaces the host's /usr/share with a private directory that only root can change.
func share(t *testing.T) {
	t.Helper()
	must.NoError(t, unix.Mount("share", "/usr/share", "tmpfs", 0, "mode=0751,gid=4242"))
	must.NoError(t, os.MkdirAll("/usr/share/dir/mounted", 0o755))
	must.NoError(t, unix.Mount("mounted", "/usr/share/dir/mounted", "tmpfs", 0, ""))
	must.NoError(t, os.WriteFile("/usr/share/dir/mounted/inside", nil, 0o644))
	must.NoError(t, os.WriteFile("/usr/share/file", []byte("of the host"), 0o600))
	must.NoError(t, os.Symlink("dir", "/usr/share/link"))
	must.NoError(t, os.Mkdir("/usr/share/many", 0o755))
	for i := range maxCopied + 1 {
		must.NoError(t, os.WriteFile(fmt.Sprintf("/usr/share/many/%d", i), nil, 0o644))
	}
	must.NoError(t, os.Mkdir("/usr/share/open", 0o755))
	must.NoError(t, os.Chmod("/usr/share/open", 0o1777))
	must.NoError(t, os.Mkdir("/usr/share/open/deep", 0o755))
}

// volumes creates a directory that contains two volumes and a task's directory, and returns its path.
func volumes(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"/one/sub", "/two", "/task/local"} {
		must.NoError(t, os.MkdirAll(dir+sub, 0o755))
	}
	must.NoError(t, os.Chmod(dir+"/task/local", 0o777))
	must.NoError(t, os.WriteFile(dir+"/one/file", []byte("of one\n"), 0o644))
	must.NoError(t, os.WriteFile(dir+"/two/file", []byte("of two\n"), 0o644))
	must.NoError(t, os.Symlink("/etc", dir+"/two/link"))
	return dir
}

// ofTask sets the task's directory of s to dir/task. dir is the result of volumes.
func (s *Spec) ofTask(dir string) *Spec {
	s.Command.TaskDir = dir + "/task"
	return s
}

func TestVolumes_CanBeMountedAtAnyPath(t *testing.T) {
	dir := volumes(t)
	vol := func(source, target string) any { return task.Mount{Source: dir + source, Target: target, Volume: true} }
	for _, row := range []struct {
		name   string
		given  []any
		script string
		want   string
	}{
		{"new in the root", []any{vol("/one", "/outrider-data")},
			"cat /outrider-data/file; cd /outrider-data; touch new && rm new; pwd; stat -c %a /",
			"of one\n/outrider-data\n755\n"},
		{"new and deep", []any{vol("/one", "/outrider-data/a/b"), vol("/two", "/outrider-data/c")},
			"cat /outrider-data/*/file /outrider-data/a/b/file; ls -C /outrider-data", "of two\nof one\na  c\n"},
		{"a file", []any{vol("/one/file", "/outrider-file")}, "cat /outrider-file", "of one\n"},
		{"new in a host directory", []any{vol("/one", "/usr/share/app/data")},
			"cd /usr/share; cat app/data/file file; echo * dir/mounted/*; readlink link; stat -c '%a %g' .",
			"of one\nof the hostapp dir file link many open dir/mounted/inside\ndir\n751 4242\n"},
		{"in several new places", []any{vol("/one", "/zz"), vol("/two", "/aa"), vol("/one", "/usr/share/b"),
			vol("/two", "/usr/share/a"), vol("/one", "/dev/some/where")},
			"cat /zz/file /aa/file /usr/share/b/file /usr/share/a/file /dev/some/where/file; head -c 1 /dev/zero | od -An -tx1",
			"of one\nof two\nof one\nof two\nof one\n 00\n"},
		{"instead of a host directory", []any{vol("/one", "/usr/share/dir")},
			"cat /usr/share/dir/file; ls /usr/share/dir", "of one\nfile\nsub\n"},
		{"existing in a directory that any user can change", []any{vol("/one", "/usr/share/open/deep")},
			"cat /usr/share/open/deep/file", "of one\n"},
		{"in the task's directory", []any{vol("/one", dir+"/task/local/a/b")},
			"cat " + dir + "/task/local/a/b/file", "of one\n"},
		{"in another volume", []any{vol("/two", "/outrider-data/sub"), vol("/one", "/outrider-data")},
			"cat /outrider-data/file /outrider-data/sub/file", "of one\nof two\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			ownHost(t, smallDev, share)
			root := top(t, "/")
			e := mustRun(t, with(row.script, row.given...).ofTask(dir))
			test.Eq(t, row.want, e.out)
			test.Eq(t, root, top(t, "/"), test.Sprint("the host's root directory has changed"))
			for _, path := range []string{"/usr/share/app", "/usr/share/a", "/usr/share/b"} {
				test.False(t, testsupport.Exists(path), test.Sprintf("the host has %s", path))
			}
		})
	}
	// a mount point that was created in the task's directory is on the host, and belongs to root
	var st unix.Stat_t
	must.NoError(t, unix.Stat(dir+"/task/local/a/b", &st))
	test.Eq(t, unix.S_IFDIR|0o755, st.Mode)
	test.Eq(t, 0, st.Uid)
}

func TestVolumes_RefusePathsThatATaskCanChange(t *testing.T) {
	dir := volumes(t)
	vol := func(source, target string) any { return task.Mount{Source: dir + source, Target: target, Volume: true} }
	must.NoError(t, os.Symlink("/etc", dir+"/task/local/link"))
	must.NoError(t, os.WriteFile(dir+"/task/local/file", nil, 0o644))
	must.NoError(t, os.Chmod(dir+"/task", 0o755))
	at := func(source, target string) string {
		return fmt.Sprintf("volume %q cannot be at %q: ", dir+source, target)
	}
	for _, row := range []struct {
		name  string
		given []any
		want  string
	}{
		{"a link", []any{vol("/one", dir+"/task/local/link")},
			at("/one", dir+"/task/local/link") + "that is a symbolic link: choose the path that it points to"},
		{"below a link", []any{vol("/one", dir+"/task/local/link/x")},
			at("/one", dir+"/task/local/link/x") + `"` + dir + `/task/local/link" is not a directory`},
		{"below a file", []any{vol("/one", dir+"/task/local/file/x")},
			at("/one", dir+"/task/local/file/x") + `"` + dir + `/task/local/file" is not a directory`},
		{"at a file", []any{vol("/one", dir+"/task/local/file")},
			at("/one", dir+"/task/local/file") + "that is not a directory"},
		{"a file at a directory", []any{vol("/one/file", dir+"/task/local")},
			at("/one/file", dir+"/task/local") + "that is a directory"},
		{"a host link", []any{vol("/one", "/usr/share/link")},
			at("/one", "/usr/share/link") + "that is a symbolic link: choose the path that it points to"},
		{"new in a directory that any user can change", []any{vol("/one", "/usr/share/open/x")},
			at("/one", "/usr/share/open/x") + `that path does not exist, and is not created because users other than ` +
				`root can change "/usr/share/open": choose a path in the task's directory, or one like /data`},
		{"new below such a directory", []any{vol("/one", "/usr/share/open/deep/x")},
			at("/one", "/usr/share/open/deep/x") + `that path does not exist, and is not created because users other than ` +
				`root can change "/usr/share/open/deep": choose a path in the task's directory, or one like /data`},
		{"new in a directory with many entries", []any{vol("/one", "/usr/share/many/x")},
			at("/one", "/usr/share/many/x") + `that path does not exist, and is not created because "/usr/share/many" has ` +
				`more than 1000 entries`},
		{"new in another volume", []any{vol("/one", "/outrider"), vol("/two", "/outrider/x")},
			at("/two", "/outrider/x") + "that path does not exist, and no path is created inside another mount"},
		{"a link in another volume", []any{vol("/two", "/outrider"), vol("/one", "/outrider/link")},
			at("/one", "/outrider/link") + "that is a symbolic link: choose the path that it points to"},
		{"in /proc", []any{vol("/one", "/proc/sys")}, at("/one", "/proc/sys") + "choose a path outside of /proc and /sys"},
		{"all of /proc", []any{vol("/one", "/proc")}, at("/one", "/proc") + "choose a path inside that directory"},
		{"in /sys", []any{vol("/one", "/sys")}, at("/one", "/sys") + "choose a path outside of /proc and /sys"},
		{"the root", []any{vol("/one", "/")}, at("/one", "/") + "choose a path inside that directory"},
		{"the task's directory", []any{vol("/one", dir+"/task/")},
			at("/one", dir+"/task") + "this would hide the task's own directory: choose another path"},
		{"above the task's directory", []any{vol("/one", dir)},
			at("/one", dir) + "this would hide the task's own directory: choose another path"},
		{"out of the task's directory through ..", []any{vol("/one", dir+"/task/../x")},
			at("/one", dir+"/task/../x") + `the path "` + dir + `/task/../x" is not absolute or has ".." in it`},
		{"two with one target", []any{vol("/one", "/outrider"), vol("/two", "/outrider")},
			at("/one", "/outrider") + `"` + dir + `/two" has the same target`},
		{"a missing volume", []any{vol("/gone", "/outrider")}, `volume "` + dir + `/gone" not found`},
	} {
		t.Run(row.name, func(t *testing.T) {
			ownHost(t, smallDev, share)
			before := tree(t, dir)
			_, err := run(with("echo ran", row.given...).ofTask(dir), nil)
			var e *Error
			must.True(t, errors.As(err, &e), must.Sprintf("got %+v", err))
			must.Eq(t, row.want, e.Message)
			test.Eq(t, before, tree(t, dir))
		})
	}
}

func TestVolumes_HaveTheirMountOptions(t *testing.T) {
	dir := volumes(t)
	const script = `grep " /outrider" /proc/self/mountinfo | cut -d" " -f6,7 | sed "s/:.*//"; echo /outrider/sub/*`
	for _, row := range []struct {
		name  string
		mount task.Mount
		want  string
	}{
		{"private", task.Mount{Volume: true}, "rw,nosuid,nodev,relatime -\n/outrider/sub/*\n"},
		{"read-only", task.Mount{Volume: true, ReadOnly: true}, "ro,nosuid,nodev,relatime -\n/outrider/sub/*\n"},
		{"host-to-task", task.Mount{Volume: true, HostToTask: true},
			"rw,nosuid,nodev,relatime master\nrw,nosuid,nodev,relatime master\n/outrider/sub/mounted\n"},
		{"a device plugin's mount", task.Mount{}, "rw,relatime master\n/outrider/sub/*\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			ownHost(t, smallDev, func(t *testing.T) {
				must.NoError(t, unix.Mount(dir+"/one", dir+"/one", "", unix.MS_BIND, ""))
				must.NoError(t, unix.Mount("", dir+"/one", "", unix.MS_SHARED, ""))
				must.NoError(t, unix.Mount("sub", dir+"/one/sub", "tmpfs", 0, ""))
				must.NoError(t, os.WriteFile(dir+"/one/sub/mounted", nil, 0o644))
			})
			row.mount.Source, row.mount.Target = dir+"/one", "/outrider"
			e := mustRun(t, with(script, row.mount))
			test.Eq(t, row.want, e.out)
		})
	}
}

func TestVolumes_AreVisibleToEveryProcessOfTheTask(t *testing.T) {
	dir := volumes(t)
	ownHost(t, smallDev)
	spec := with("sleep 600", task.Mount{Source: dir + "/one", Target: "/outrider", Volume: true})
	spec.Command.User, spec.Command.NoNewPrivileges = &task.User{UID: 65534, GID: 65534}, true
	pid := running(t, spec)
	later := shell("cat /outrider/file; ls /proc/self/root/outrider; grep NoNewPrivs /proc/self/status").in(t, pid)
	later.Command.User, later.Command.NoNewPrivileges = spec.Command.User, true
	test.Eq(t, "of one\nfile\nsub\nNoNewPrivs:\t1\n", mustRun(t, later).out)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.NoError(t, err)
	test.StrContains(t, string(b), "NoNewPrivs:\t1\n")
	test.False(t, testsupport.Exists("/outrider"), test.Sprint("the host has the mount too"))
}

// A program in a volume is found, although its path does not exist before the volume is mounted.
func TestVolumes_MayContainPrograms(t *testing.T) {
	dir := volumes(t)
	must.NoError(t, os.WriteFile(dir+"/one/program", []byte("#!/bin/sh\necho ran\n"), 0o755))
	ownHost(t, smallDev)
	for _, path := range []string{"app/program", dir + "/task/local/app/program", "/outrider/program"} {
		spec := with("", task.Mount{Source: dir + "/one", Target: dir + "/task/local/app", Volume: true},
			task.Mount{Source: dir + "/one", Target: "/outrider", Volume: true}).ofTask(dir)
		spec.Command.Path, spec.Command.Args = path, nil
		spec.Command.Lookup = []string{filepath.Join(dir, "task/local"), filepath.Join(dir, "task")}
		test.Eq(t, "ran\n", mustRun(t, spec).out, test.Sprint(path))
	}
}

// Root makes a file in the task's directory executable, but not a file of a volume that is mounted there.
func TestVolumes_KeepTheModesOfPrograms(t *testing.T) {
	dir := volumes(t)
	must.NoError(t, os.WriteFile(dir+"/one/program", []byte("#!/bin/sh\necho ran\n"), 0o600))
	must.NoError(t, os.WriteFile(dir+"/task/local/program", []byte("#!/bin/sh\necho ran\n"), 0o600))
	ownHost(t, smallDev)
	for path, ran := range map[string]bool{"program": true, "app/program": false, dir + "/task/local/app/program": false} {
		spec := with("", task.Mount{Source: dir + "/one", Target: dir + "/task/local/app", Volume: true}).ofTask(dir)
		spec.Command.Path, spec.Command.Args = path, nil
		spec.Command.Lookup = []string{filepath.Join(dir, "task/local"), filepath.Join(dir, "task")}
		_, err := run(spec, nil)
		test.Eq(t, ran, err == nil, test.Sprint(path, ": ", err))
	}
	info, err := os.Stat(dir + "/one/program")
	must.NoError(t, err)
	test.Eq(t, 0o600, info.Mode())
}

// A task with a private root directory sees later mounts of the host, and can create user namespaces, which the
// kernel refuses to a process that has changed its root (user_namespaces(7)).
func TestVolumes_PrivateRootAllowsLaterMountsAndUserNamespaces(t *testing.T) {
	dir := volumes(t)
	must.NoError(t, os.Mkdir(dir+"/later", 0o755))
	ownHost(t, smallDev)
	volume := task.Mount{Source: dir + "/one", Target: "/outrider", Volume: true}
	pid := running(t, with("sleep 600", volume))
	must.NoError(t, unix.Mount("later", dir+"/later", "tmpfs", 0, ""))
	test.NoError(t, os.WriteFile(dir+"/later/file", nil, 0o644))
	test.True(t, testsupport.Exists(rootOf(pid)+dir+"/later/file"))
	must.NoError(t, unix.Unmount(dir+"/later", 0))
	test.False(t, testsupport.Exists(rootOf(pid)+dir+"/later/file"))

	const script = "unshare --user --map-root-user id -u 2>&1; true"
	test.Eq(t, mustRun(t, with(script)).out, mustRun(t, with(script, volume)).out)
}
