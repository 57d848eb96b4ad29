// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestSeal_RefusesDangerousFiles(t *testing.T) {
	outside := testDir(t)
	must.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600))
	for _, c := range []struct {
		what string
		do   func(dir string) error
		want string // a part of the error; empty if the environment must be sealed
	}{
		{"nothing", func(string) error { return nil }, ""},
		{"a set-user-ID file", func(d string) error { return unix.Chmod(d+"/bin/activate", 0o4755) }, "another user"},
		{"a set-group-ID file", func(d string) error { return unix.Chmod(d+"/bin/activate", 0o2755) }, "another user"},
		{"a FIFO", func(d string) error { return unix.Mkfifo(d+"/fifo", 0o644) }, "fifo is neither"},
		{"a socket", func(d string) error { return unix.Mknod(d+"/socket", unix.S_IFSOCK|0o644, 0) }, "socket is neither"},
		{"a link to the interpreter", func(d string) error { return os.Symlink("/bin/sh", d+"/bin/python3.11") }, ""},
		{"a link pypy3 to the interpreter", func(d string) error { return os.Symlink("/bin/sh", d+"/bin/pypy3") }, ""},
		{"a link to the interpreter in lib", func(d string) error { return os.Symlink("/bin/sh", d+"/lib/x") }, "outside"},
		{"a link to the interpreter below bin", func(d string) error {
			return errors.Join(os.Mkdir(d+"/bin/bin", 0o755), os.Symlink("/bin/sh", d+"/bin/bin/python3"))
		}, "outside"},
		{"a hard link", func(d string) error { return os.Link(d+"/bin/activate", d+"/lib/x") }, "hard link"},
		{"an absolute link elsewhere", func(d string) error { return os.Symlink("/etc/passwd", d+"/bin/x") }, "outside"},
		{"a relative link that leads out", func(d string) error { return os.Symlink("../../x", d+"/lib/x") }, "outside"},
		{"a link that leads out and in", func(d string) error { return os.Symlink("../../env/bin", d+"/lib/x") }, "outside"},
		{"a link through another link", func(d string) error { return os.Symlink("package0/../../../x", d+"/lib/x") },
			"outside"},
		{"a relative link that stays", func(d string) error { return os.Symlink("../bin/activate", d+"/lib/x") }, ""},
		{"a dangling link that stays", func(d string) error { return os.Symlink("nothing", d+"/lib/x") }, ""},
		{"no directory", func(d string) error { return os.RemoveAll(d) }, "no such file"},
		{"a file instead of a directory", func(d string) error {
			if err := os.RemoveAll(d); err != nil {
				return err
			}
			return os.WriteFile(d, nil, 0o644)
		}, "not a directory"},
		{"a link instead of a directory", func(d string) error {
			if err := os.RemoveAll(d); err != nil {
				return err
			}
			return os.Symlink(outside, d)
		}, "not a directory"},
	} {
		t.Run(c.what, func(t *testing.T) {
			cache := testCache(t)
			s := Spec{Key: "k", Interpreter: "/bin/sh", Build: func(ctx context.Context, dir,
				scratch string) error {
				if err := writeTree(dir, 30); err != nil {
					return err
				}
				if err := c.do(dir); err != nil {
					return err
				}
				if _, err := os.Lstat(dir); err != nil {
					return nil
				}
				modes := map[string]os.FileMode{}
				if strings.Contains(c.what, "-ID") { // chown clears these bits, so set them after it
					modes[dir+"/bin/activate"] = map[bool]os.FileMode{true: 0o4755, false: 0o2755}[strings.Contains(c.what, "user")]
				}
				if err := chownTree(dir, builder()); err != nil {
					return err
				}
				for p, m := range modes {
					if err := unix.Chmod(p, uint32(m)); err != nil {
						return err
					}
				}
				return nil
			}}
			e, err := cache.Get(t.Context(), s)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err == nil {
				e.Release()
				mustBeTidy(t, cache, 1)
			} else {
				mustBeTidy(t, cache, 0)
			}
		})
	}
	names, err := os.ReadDir(outside)
	must.SliceLen(t, 1, names, must.Sprint("files outside"))
	test.NoError(t, err, test.Sprint("files outside"))
}

// Sealing makes a link to the interpreter point straight to it: another user could later change a link on the old path.
func TestSeal_ReplacesLinksToTheInterpreter(t *testing.T) {
	others := filepath.Join(testDir(t), "others")
	must.NoError(t, os.Symlink("/bin/sh", others))
	for _, target := range []string{"/bin/sh", others, "/nowhere", fmt.Sprintf("/proc/%d/root/bin/sh", os.Getpid())} {
		build := func(_ context.Context, dir, _ string) error {
			return errors.Join(writeTree(dir, 3), os.Symlink(target, dir+"/bin/python3.11"), chownTree(dir, builder()))
		}
		e := mustGet(t, testCache(t), Spec{Key: "k", Interpreter: "/bin/cat", Build: build})
		link := e.Dir + "/bin/python3.11"
		got, err := os.Readlink(link)
		must.NoError(t, err, must.Sprintf("%s became", target))
		must.Eq(t, "/bin/cat", got, must.Sprintf("%s became", target))
		info, err := os.Lstat(link)
		must.NoError(t, err, must.Sprintf("%s: the link is not ours", target))
		test.Eq(t, os.Geteuid(), int(owner(info)), test.Sprintf("%s: the link is not ours", target))
		e.Release()
	}
}

func TestSeal_RefusesFilesOfOtherUsers(t *testing.T) {
	testsupport.NeedRoot(t) // only root can give the tree to another user, the builder
	c := testCache(t)
	secret := filepath.Join(testDir(t), "secret")
	must.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	_, err := c.Get(t.Context(), Spec{Key: "k", Build: func(ctx context.Context, dir,
		scratch string) error {
		if err := building(3)(ctx, dir, scratch); err != nil {
			return err
		}
		return os.Link(secret, filepath.Join(dir, "lib", "linked"))
	}})
	test.ErrorContains(t, err, "lib/linked belongs to user 0")
	info, err := os.Stat(secret)
	must.NoError(t, err, must.Sprintf("it is %v, %v now", info, err))
	must.Eq(t, 0o600, info.Mode(), must.Sprintf("it is %v, %v now", info, err))
	test.Eq(t, 0, owner(info), test.Sprintf("it is %v, %v now", info, err))
	mustBeTidy(t, c, 0)
}

// While a tree is sealed and removed, another process of the builder swaps parts of it with links to files of root.
func TestSeal_ResistsConcurrentSwaps(t *testing.T) {
	testsupport.NeedRoot(t) // only root can build as another user
	victim := testDir(t)
	for i := range 10 {
		must.NoError(t, os.WriteFile(filepath.Join(victim, fmt.Sprintf("module%d.py", i)), []byte("root's"), 0o600))
	}
	must.NoError(t, os.WriteFile(filepath.Join(victim, "secret"), []byte("root's"), 0o600))
	before, err := measure(victim)
	must.NoError(t, err)
	swapper := startPeer(t, builder(), "swap", victim)
	c := testCache(t)
	sealed, refused := 0, 0
	times := 25
	if testing.Short() {
		times = 10
	}
	for i := 0; i < times || refused == 0 && i < 20*times; i++ { // more rounds if a busy machine delays the first swap
		var failure error // of the build, and not of sealing
		e, err := c.Get(t.Context(), Spec{Key: fmt.Sprint(i), Build: func(ctx context.Context, dir, scratch string) error {
			if failure = building(200)(ctx, dir, scratch); failure != nil {
				return failure
			}
			if _, failure = fmt.Fprintln(swapper.in, dir, scratch); failure != nil {
				return failure
			}
			_, failure = swapper.out.ReadString('\n')
			return failure
		}})
		must.NoError(t, failure)
		if err == nil {
			sealed++
			e.Release()
		} else {
			refused++
		}
		if i%10 == 0 {
			c.cfg.MaxSize = 1
			mustTidy(t, c)
			mustBeTidy(t, c, 0)
		}
	}
	swapper.in.Close()
	test.NoError(t, swapper.Wait())
	mustTidy(t, c)
	mustBeTidy(t, c, 0)
	after, err := measure(victim)
	must.NoError(t, err, must.Sprintf("the other directory changed from %+v to", before))
	test.EqOp(t, after, before, test.Sprintf("the other directory changed from %+v to", before))
	t.Logf("%d sealed, %d refused", sealed, refused)
	must.NotEq(t, 0, sealed, must.Sprint("no race occurred"))
	test.NotEq(t, 0, refused, test.Sprint("no race occurred"))
}
