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

	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// unveilDir returns a directory with two subdirectories that everybody can change: "open", to unveil, and "hidden".
func unveilDir(t *testing.T) string {
	t.Helper()
	testsupport.NeedRoot(t)
	if landlock.ABI() < landlock.Complete {
		t.Skipf("this kernel has version %d of Landlock", landlock.ABI())
	}
	nothingLeft(t)
	dir, err := os.MkdirTemp("", "outrider-unveil-")
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, os.RemoveAll(dir)) })
	for _, sub := range []string{"/open", "/hidden"} {
		must.NoError(t, os.Mkdir(dir+sub, 0o777))
		must.NoError(t, os.WriteFile(dir+sub+"/file", []byte("text of "+sub+"\n"), 0o666))
		must.NoError(t, os.WriteFile(dir+sub+"/program", []byte("#!/bin/sh\necho program ran\n"), 0o777))
		for _, path := range []string{sub, sub + "/file", sub + "/program"} {
			must.NoError(t, os.Chmod(dir+path, 0o777))
		}
	}
	must.NoError(t, os.Chmod(dir, 0o755))
	must.NoError(t, os.Symlink("../hidden/file", dir+"/open/link"))
	return dir
}

// unveiled returns a Spec that runs a script as user nobody, confined to some paths and the defaults.
func unveiled(t *testing.T, dir, script string, paths ...string) *Spec {
	t.Helper()
	spec := shell("cd " + dir + "\n" + script)
	spec.Command.User = &task.User{UID: 65534, GID: 65534}
	spec.Command.Unveil = &task.Unveil{Defaults: true, Strict: true}
	for _, text := range paths {
		modes, at, _ := strings.Cut(text, ":")
		p, err := task.ParseUnveiled("unveil", modes+":"+filepath.Join(dir, at))
		must.NoError(t, err)
		spec.Command.Unveil.Paths = append(spec.Command.Unveil.Paths, p)
	}
	return spec
}

func TestUnveil_AllowsOnlyTheNamedPaths(t *testing.T) {
	const denied = "ermission denied"
	for _, row := range []struct{ paths, script, want string }{
		{"", "echo text | tr a-z A-Z", "TEXT"}, // the machine's programs are visible
		{"", "id -un", "nobody"},
		{"", "echo thrown away >/dev/null; echo done", "done"},
		{"", "cat open/file", denied},
		{"", "ls /root /home /tmp /srv", denied},
		{"", "cat /proc/1/status", denied},
		{"", "echo >/proc/self/oom_score_adj", denied},

		{"r:open", "cat open/file", "text of /open"},
		{"r:open", "ls open", "link"},
		{"r:open/file", "cat open/file", "text of /open"},
		{"r:open", "cat hidden/file", denied},
		{"r:open", "cat open/../hidden/file", denied},
		{"r:open", "cat open/link", denied},
		{"r:open", "cat /proc/self/cwd/hidden/file", denied},
		{"r:open", "echo new >open/file", denied},
		{"r:open", "echo new >open/new", denied},
		{"r:open", "rm open/file", denied},
		{"r:open", "open/program", denied},
		{"r:open/file", "cat open/program", denied},

		{"rw:open", "echo new >open/file; cat open/file", "new"},
		{"rw:open", "echo new >open/new", denied},
		{"rw:open", "truncate -s 0 hidden/file", denied},
		{"w:open", "cat open/file", denied},

		{"rwc:open", "mkdir open/sub; mv open/file open/sub; cat open/sub/file", "text of /open"},
		{"rwc:open", "rm open/file open/program; ls open", "link"},
		{"rwc:open", "ln open/file hidden/file2 || mv open/file hidden", "hidden"},
		{"rwc:open", "rm hidden/file", denied},

		{"rx:open", "open/program", "program ran"},
		{"x:open", "open/program", denied}, // the program is a script, which its shell must read
		{"rx:open", "sh -c 'hidden/program'", denied},
		{"rx:open rx:hidden", "hidden/program", "program ran"},
	} {
		dir := unveilDir(t)
		e := mustRun(t, unveiled(t, dir, row.script, strings.Fields(row.paths)...))
		test.StrContains(t, e.out, row.want, test.Sprintf("%s: %s", row.paths, row.script))
		text, err := os.ReadFile(dir + "/hidden/file")
		must.NoError(t, err)
		test.Eq(t, "text of /hidden\n", string(text), test.Sprintf("%s: %s", row.paths, row.script))
		test.FileNotExists(t, dir+"/hidden/file2")
	}
}

func TestUnveil_DeniesTheCreationOfDeviceNodes(t *testing.T) {
	dir := unveilDir(t)
	spec := unveiled(t, dir, "mknod open/mem c 1 1; mkfifo open/fifo; ls open", "rwc:open")
	spec.Command.User = nil // root
	e := mustRun(t, spec)
	test.StrContains(t, e.out, "fifo")
	test.StrNotContains(t, e.out, "\nmem")
}

func TestUnveil_ProgramGainsNoPrivileges(t *testing.T) {
	spec := unveiled(t, unveilDir(t), "while read -r line; do echo \"$line\"; done </proc/self/status")
	spec.Command.Unveil.Paths = []task.UnveiledPath{{Path: "/proc", Modes: "r"}}
	test.Eq(t, "1", field(t, mustRun(t, spec).out, "NoNewPrivs"))
}

// A task that can change a directory could redirect an operator's path that leads through it.
func TestUnveil_FollowsOnlyLinksOwnedByRootInOperatorPaths(t *testing.T) {
	dir := unveilDir(t)
	must.NoError(t, os.Symlink(dir+"/hidden", dir+"/roots"))
	must.NoError(t, os.Symlink("hidden", dir+"/users"))
	must.NoError(t, os.Lchown(dir+"/users", 65534, 65534))
	const refused = "contains too many links, or one that does not belong to root"
	for path, want := range map[string]string{
		"roots": "text of /hidden", "open/../roots/file": "text of /hidden", "users": refused, "users/file": refused,
	} {
		spec := unveiled(t, dir, "cat hidden/file")
		spec.Command.Unveil.Paths = []task.UnveiledPath{{Path: dir + "/" + path, Modes: "r"}}
		e, err := run(spec, nil)
		got := e.out
		if err != nil {
			got = err.Error()
		}
		test.StrContains(t, got, want, test.Sprint(path))

		spec.Command.Unveil.Paths[0].Author = true
		test.Eq(t, "text of /hidden\n", mustRun(t, spec).out, test.Sprint(path))
	}
	must.NoError(t, os.Symlink("loop", dir+"/loop"))
	_, err := run(unveiled(t, dir, "true", "r:loop"), nil)
	test.ErrorContains(t, err, refused)
}

func TestUnveil_ErrorsAreOneSentence(t *testing.T) {
	dir := unveilDir(t)
	_, err := run(unveiled(t, dir, "true", "r:missing"), nil)
	test.EqError(t, err, "unveil: path \""+dir+"/missing\" does not exist")

	spec := unveiled(t, dir, "true")
	spec.Command.Unveil.Paths = []task.UnveiledPath{{Path: dir + "/missing", Modes: "r", Optional: true}}
	test.Eq(t, "", mustRun(t, spec).out)

	must.NoError(t, os.Chmod(dir+"/hidden", 0o700)) // the user can't reach it, with or without unveil
	test.Eq(t, "", mustRun(t, unveiled(t, dir, "true", "r:hidden/file")).out)

	spec = unveiled(t, dir, "")
	spec.Command.Path = dir + "/open/program"
	_, err = run(spec, nil)
	test.EqError(t, err, "command \""+spec.Command.Path+"\" cannot be executed: no path of unveil allows x for it and "+
		"for its interpreter")
}
