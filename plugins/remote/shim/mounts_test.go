// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// What a task has mounted is not the object's to remove.
func TestRemove_LeavesWhatATaskHasMounted(t *testing.T) {
	testsupport.NeedRoot(t)
	top, victim, link := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "link")
	must.NoError(t, os.Symlink(top, link)) // the kernel tells of mounts without links
	for _, dir := range []string{"a", "b"} {
		must.NoError(t, os.Mkdir(filepath.Join(victim, dir), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(victim, dir, "file"), nil, 0o600))
	}
	s, err := New(Config{StateDir: link})
	must.NoError(t, err)
	defer s.Close()
	d := s.dirs(&stored{Record: endpoint.Record{Name: "r", Key: endpoint.Key{Task: "web"}}})
	object := filepath.Dir(d.task)
	mounts := func() int {
		b, err := os.ReadFile("/proc/self/mountinfo")
		must.NoError(t, err)
		return strings.Count(string(b), " "+top+"/objects/r/")
	}
	t.Cleanup(func() { // of a test that fails
		all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(top, "objects")))
		must.NoError(t, err)
		for _, m := range slices.Backward(all) {
			_ = unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
		}
	})
	for name, remove := range map[string]func() error{
		"prepare": func() error { return d.renew(nil) },
		"remove": func() error {
			l, err := s.lockDir("r")
			if err != nil {
				return err
			}
			defer l.unlock()
			return s.removeFiles(l)
		},
	} {
		must.NoError(t, os.MkdirAll(object, 0o711))
		must.NoError(t, d.renew(nil))
		at := filepath.Join(d.local, "with space\nand line")
		must.NoError(t, os.MkdirAll(at, 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(d.tmp, "file"), nil, 0o600))
		for source, target := range map[string]string{
			filepath.Join(victim, "a"): at, victim: d.secrets, filepath.Join(victim, "a/file"): filepath.Join(d.tmp, "file"),
		} {
			must.NoError(t, unix.Mount(source, target, "", unix.MS_BIND, ""))
		}
		must.NoError(t, unix.Mount(filepath.Join(victim, "b"), at, "", unix.MS_BIND, ""), must.Sprint("on top of the other"))
		must.NoError(t, unix.Mount(victim, filepath.Join(d.secrets, "b"), "", unix.MS_BIND, ""), must.Sprint("below another"))
		must.Eq(t, 5, mounts())
		must.NoError(t, remove(), must.Sprint(name))
		must.Eq(t, 0, mounts(), must.Sprint(name))
		for _, dir := range []string{"a", "b"} {
			test.FileExists(t, filepath.Join(victim, dir, "file"), test.Sprint(name))
		}
	}
}

func TestRemove_TellsAnOrdinaryUserOfAMount(t *testing.T) {
	testsupport.NeedRoot(t) // to mount, and to become another user
	const user = 65534
	dir := t.TempDir()
	for up := dir; up != "/"; up = filepath.Dir(up) {
		if info, err := os.Stat(up); err == nil && info.Mode()&0o001 == 0 {
			must.NoError(t, os.Chmod(up, info.Mode().Perm()|0o011))
		}
	}
	at := filepath.Join(dir, "mounted")
	must.NoError(t, os.Mkdir(at, 0o755))
	must.NoError(t, unix.Mount("tmpfs", at, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	testsupport.AsUser(t, user, func() error {
		err := unmount(dir)
		test.ErrorContains(t, err, `"`+at+`" on the host has a file system that the task has mounted: unmount it there`)
		return nil
	})
	must.NoError(t, unmount(dir))
	testsupport.AsUser(t, user, func() error { return unmount(dir) })
}
