// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestCache_RefusesDirectoriesThatOtherUsersCanReplace(t *testing.T) {
	base := testDir(t)
	for _, c := range []struct {
		what, dir string
		make      func(dir string) error
		want      string // a part of the error, "" if the directory is accepted
		root      bool   // the case needs root
	}{
		{"a relative path", "cache", nil, "not absolute", false},
		{"a missing directory", base + "/a/b/c", nil, "", false},
		{"a directory below a world-writable one", base + "/world/cache", func(string) error {
			if err := os.Mkdir(base+"/world", 0o755); err != nil {
				return err
			}
			return os.Chmod(base+"/world", 0o777)
		}, "chmod go-w " + base + "/world", false},
		{"a directory that others cannot reach", base + "/private/cache", func(string) error {
			return os.Mkdir(base+"/private",
				0o700)
		}, "chmod o+x " + base + "/private", true},
		{"a link to a good directory", base + "/link", func(d string) error {
			if err := os.Mkdir(base+"/target", 0o755); err != nil {
				return err
			}
			return os.Symlink(base+"/target", d)
		}, "", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("only root has other users' directories")
			}
			if c.make != nil {
				must.NoError(t, c.make(c.dir))
			}
			e, err := Open(Config{Dir: c.dir, Builder: builder()}).Get(t.Context(), Spec{Key: "k", Build: building(3)})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err == nil {
				e.Release()
			}
		})
	}
}

func TestCache_IgnoresTheUmask(t *testing.T) {
	testsupport.NeedRoot(t) // only root can run programs as other users
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	c := testCache(t)
	e := mustGet(t, c, Spec{Key: "k", Build: building(3)})
	defer e.Release()
	out, err := asUser(65534, "test -r "+e.Dir+"/lib/package1/module1.py && "+e.Dir+"/bin/python3 -c "+
		"true")
	test.NoError(t, err, test.Sprintf("%v: %s", err, out))
}

func asUser(uid uint32, script string) (string, error) {
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: unix.SIGKILL}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestCache_CannotBeChangedByOtherUsers(t *testing.T) {
	testsupport.NeedRoot(t) // only root can run programs as other users
	c := testCache(t)
	e := mustGet(t, c, Spec{Key: "k", Secret: "s", Build: building(3)})
	defer e.Release()
	dir := c.cfg.Dir
	for _, uid := range []uint32{65534, builder().Uid} {
		out, err := asUser(uid, "cat "+e.Dir+"/lib64/package1/module1.py")
		must.NoError(t, err, must.Sprintf("user %d cannot read it", uid))
		test.Eq(t, "x = 1\n", out, test.Sprintf("user %d cannot read it", uid))
		for _, script := range []string{
			"echo >> " + e.Dir + "/lib/package1/module1.py",
			"rm -f " + e.Dir + "/lib/package1/module1.py",
			"touch " + e.Dir + "/new",
			"touch " + e.Dir + "/lib/package1/new",
			"chmod u+w " + e.Dir + "/lib",
			"mv " + e.Dir + " " + e.Dir + ".away",
			"mv " + dir + "/envs " + dir + "/envs.away",
			"ls " + dir + "/envs",
			"ls " + dir + "/builds",
			"mkdir " + dir + "/envs/new",
			"mkdir " + dir + "/builds/new",
			"mkdir " + dir + "/new",
			"ls " + dir + "/meta",
			"ls " + dir + "/users",
			": < " + dir + "/lock",
			": >> " + dir + "/lock",
		} {
			out, err := asUser(uid, script)
			test.Error(t, err, test.Sprintf("user %d may %s: %s", uid, script, out))
		}
	}
	again := mustGet(t, c, Spec{Key: "k", Secret: "s"})
	again.Release()
}
