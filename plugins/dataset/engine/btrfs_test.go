// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/simulate/simulatetest"
)

// btrfs makes a pool with a root in it, which is not there when it is not mounted.
func btrfs(t *testing.T) column {
	t.Helper()
	testsupport.NeedRoot(t)
	pool := simulatetest.New(t, "btrfs")
	pool.Root = filepath.Join(pool.Root, "root")
	must.NoError(t, os.Mkdir(pool.Root, 0o711))
	return newColumn(t, "btrfs", pool)
}

// volume makes a dataset that the test does not clean up.
func (c column) volume(t *testing.T) (name, path string) {
	t.Helper()
	name = c.name()
	path, err := c.Create(t.Context(), name, engine.Spec{Limits: engine.Limits{Data: 64 * mib}})
	must.NoError(t, err)
	write(t, path, "file", "content")
	return name, path
}

// calls are all operations that change something, on a dataset with a snapshot "s".
func (c column) calls(t *testing.T, name string) map[string]error {
	t.Helper()
	ctx := t.Context()
	_, create := c.Create(ctx, c.name(), engine.Spec{Limits: engine.Limits{Data: mib}})
	_, clone := c.Clone(ctx, name, "s", c.name(), engine.Spec{})
	return map[string]error{
		"Create":          create,
		"Clone":           clone,
		"Rename":          c.Rename(ctx, name, c.name()),
		"Tag":             c.Tag(ctx, name, engine.Tags{engine.Holder: "x"}),
		"Resize":          c.Resize(ctx, name, engine.Limits{Data: 80 * mib}),
		"Snapshot":        c.Snapshot(ctx, name, "another"),
		"DestroySnapshot": c.DestroySnapshot(ctx, name, "s"),
		"Rollback":        c.Rollback(ctx, name, "s", true),
		"Destroy":         c.Destroy(ctx, name),
	}
}

// btrfs deletes a subvolume that a container has mounted, and its data is gone. The engine does not.
func TestBtrfs_DeletesWhatIsInUseWithoutTheGuard(t *testing.T) {
	c := btrfs(t)
	container := func(path string) (*exec.Cmd, func() error) {
		t.Helper()
		at := t.TempDir()
		out, in, err := os.Pipe()
		must.NoError(t, err)
		answer, said, err := os.Pipe()
		must.NoError(t, err)
		cmd := exec.Command("/bin/sh", "-c", `mount --bind "$1" "$2" && echo ready && read line && cat "$2/file"`,
			"sh", path, at)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // Go makes its mounts private
		cmd.Stdin, cmd.Stdout = out, said
		must.NoError(t, cmd.Start())
		ready := make([]byte, 6)
		_, err = answer.Read(ready)
		must.NoError(t, err)
		must.Eq(t, "ready\n", string(ready))
		return cmd, func() error { // reads the file, and ends
			_, err := in.WriteString("go\n")
			must.NoError(t, err)
			err = cmd.Wait()
			for _, f := range []*os.File{out, in, answer, said} {
				f.Close()
			}
			return err
		}
	}

	name, path := c.volume(t)
	must.NoError(t, c.Snapshot(t.Context(), name, "s"))
	_, readIt := container(path)
	run(t, c.pool.Program, "subvolume", "delete", path) // btrfs itself
	must.Error(t, readIt())
	must.NoError(t, c.Destroy(t.Context(), name)) // what that left

	name, path = c.volume(t)
	must.NoError(t, c.Snapshot(t.Context(), name, "s"))
	cmd, readIt := container(path)
	for what, err := range map[string]error{
		"Destroy":  c.Destroy(t.Context(), name),
		"Rename":   c.Rename(t.Context(), name, ".trash/x"),
		"Rollback": c.Rollback(t.Context(), name, "s", true),
	} {
		must.ErrorIs(t, err, engine.ErrInUse, must.Sprint(what))
		must.StrContains(t, err.Error(), "process "+strconv.Itoa(cmd.Process.Pid)+" (sh) has it mounted at ")
	}
	must.NoError(t, readIt())
	must.Eq(t, "content", read(t, path, "file"))
	must.NoError(t, c.Destroy(t.Context(), name))
	c.nothingLeft(t)
}

// Any user can make subvolumes in a directory of theirs, with any name.
func TestBtrfs_DestroyFindsSubvolumesOfTasks(t *testing.T) {
	c := btrfs(t)
	other, otherPath := c.volume(t)
	d, err := c.Get(t.Context(), other)
	must.NoError(t, err)
	name, path := c.volume(t)
	must.NoError(t, engine.SetOwner(path, 65534, 65534, 0o700))
	asTask := func(args ...string) {
		t.Helper()
		cmd := exec.Command(c.pool.Program, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
	}
	inner := filepath.Join(path, "sub\nID 256 gen 9 top level 5 path root")
	asTask("subvolume", "create", inner)
	asTask("subvolume", "create", inner+"/in it")
	asTask("subvolume", "snapshot", inner, inner+"/in it/copy")

	f, err := os.Create(inner + "/in it/file")
	must.NoError(t, err)
	must.ErrorIs(t, c.Destroy(t.Context(), name), engine.ErrInUse)
	must.NoError(t, f.Close())
	must.True(t, testsupport.Exists(inner+"/in it/file"))
	must.NoError(t, c.Destroy(t.Context(), name))

	must.Eq(t, "content", read(t, otherPath, "file"))
	now, err := c.Get(t.Context(), other)
	must.NoError(t, err)
	must.Eq(t, d.Limits, now.Limits)
	must.NoError(t, c.Destroy(t.Context(), other))
	c.nothingLeft(t)
}

func TestBtrfs_PoolThatIsNotMountedIsUnavailable(t *testing.T) {
	c := btrfs(t)
	name, path := c.volume(t)
	must.NoError(t, c.Snapshot(t.Context(), name, "s"))
	device := strings.Fields(run(t, "findmnt", "-no", "SOURCE", filepath.Dir(c.pool.Root)))[0]
	image := strings.TrimSpace(run(t, "losetup", "--noheadings", "--output", "BACK-FILE", device))
	must.NoError(t, unix.Unmount(filepath.Dir(c.pool.Root), 0))
	gone := func(says string) {
		t.Helper()
		calls := c.calls(t, name)
		_, calls["List"] = c.List(t.Context())
		_, calls["Get"] = c.Get(t.Context(), name)
		_, calls["Mount"] = c.Mount(t.Context(), name, "")
		_, calls["Space"] = c.Space(t.Context())
		_, calls["Users"] = c.Users(t.Context(), name)
		calls["Check"] = c.Check(t.Context())
		for what, err := range calls {
			must.ErrorIs(t, err, engine.ErrUnavailable, must.Sprint(what))
			must.StrContains(t, err.Error(), says, must.Sprint(what))
			oneSentence(t, err)
		}
	}
	gone("does not exist")
	must.NoError(t, os.Mkdir(c.pool.Root, 0o711)) // as if it had been made by hand
	gone("is not on a btrfs")
	must.SliceEmpty(t, entries(t, c.pool.Root))
	must.NoError(t, os.Remove(c.pool.Root))

	run(t, "mount", "-o", "loop", image, filepath.Dir(c.pool.Root))
	must.Eq(t, path, c.mount(t, name))
	must.Eq(t, "content", read(t, path, "file"))
	must.NoError(t, c.Destroy(t.Context(), name))
	c.nothingLeft(t)
}

func TestBtrfs_ReadOnlyPoolIsUnavailableForChanges(t *testing.T) {
	c := btrfs(t)
	name, path := c.volume(t)
	must.NoError(t, c.Snapshot(t.Context(), name, "s"))
	before, err := c.Get(t.Context(), name)
	must.NoError(t, err)
	pool := filepath.Dir(c.pool.Root)
	must.NoError(t, unix.Mount("", pool, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	calls := c.calls(t, name)
	calls["Check"] = c.Check(t.Context())
	for what, err := range calls {
		must.ErrorIs(t, err, engine.ErrUnavailable, must.Sprint(what))
		oneSentence(t, err)
	}
	must.Eq(t, path, c.mount(t, name)) // what exists is still there
	must.SliceContains(t, c.list(t), name)
	must.NoError(t, unix.Mount("", pool, "", unix.MS_REMOUNT, ""))
	after, err := c.Get(t.Context(), name)
	must.NoError(t, err)
	must.Eq(t, before, after)
	must.NoError(t, c.Destroy(t.Context(), name))
	c.nothingLeft(t)
}

func TestBtrfs_WithoutQuotasIsUnavailable(t *testing.T) {
	c := btrfs(t)
	run(t, c.pool.Program, "quota", "disable", c.pool.Root)
	_, err := c.Create(t.Context(), c.name(), engine.Spec{Limits: engine.Limits{Data: mib}})
	for _, err := range []error{err, c.Check(t.Context())} {
		must.ErrorIs(t, err, engine.ErrUnavailable)
		must.StrContains(t, err.Error(), "run btrfs quota enable "+c.pool.Root)
		oneSentence(t, err)
	}
	must.SliceEmpty(t, entries(t, c.pool.Root))
}

// A full pool ends writes, and what is there can be listed, tagged, discarded and destroyed.
func TestBtrfs_FullPoolCanBeEmptied(t *testing.T) {
	c := btrfs(t)
	name := c.name()
	path, err := c.Create(t.Context(), name, engine.Spec{})
	must.NoError(t, err)
	crowd(t, path)
	full, _ := c.Space(t.Context())
	must.Less(t, 64*mib, full.Free)

	must.NoError(t, c.Tag(t.Context(), name, engine.Tags{engine.Holder: "x"}))
	must.NoError(t, c.Snapshot(t.Context(), name, "s"))
	must.NoError(t, c.Rename(t.Context(), name, ".trash/x"))
	other, err := c.Create(t.Context(), c.name(), engine.Spec{Limits: engine.Limits{Data: 64 * mib}})
	if err != nil {
		must.ErrorIs(t, err, engine.ErrNoSpace)
		oneSentence(t, err)
	} else {
		_, err := fill(t, other, 64*mib)
		must.ErrorIs(t, err, unix.ENOSPC)
	}
	for _, name := range c.list(t) {
		must.NoError(t, c.Destroy(t.Context(), name))
	}
	c.nothingLeft(t)
	testsupport.Eventually(t, "the space to be given back", func() bool {
		unix.Sync()
		s, err := c.Space(t.Context())
		return err == nil && s.Free > simulatetest.Size/2
	})
}

// A stream that does not fit leaves what was there.
func TestBtrfs_ReceiveIntoFullPoolChangesNothing(t *testing.T) {
	from, c := btrfs(t), btrfs(t)
	name, path := from.volume(t)
	must.NoError(t, from.Resize(t.Context(), name, engine.Limits{}))
	_, err := fill(t, path, 50*mib)
	must.NoError(t, err)
	must.NoError(t, from.Snapshot(t.Context(), name, "s"))
	stream := from.send(t, name, "s", "")
	_, crowded := c.volume(t)
	must.NoError(t, c.Resize(t.Context(), c.list(t)[0], engine.Limits{}))
	crowd(t, crowded)
	err = c.Receive(t.Context(), c.name(), bytes.NewReader(stream))
	must.ErrorIs(t, err, engine.ErrNoSpace)
	oneSentence(t, err)
	must.Len(t, 1, c.list(t))
	must.NoError(t, c.Destroy(t.Context(), c.list(t)[0]))
	c.nothingLeft(t)
}

// crowd takes all space that is left.
func crowd(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(filepath.Join(path, "crowd"))
	must.NoError(t, err)
	defer f.Close()
	end := int64(0)
	for size := int64(256 * mib); size > 64<<10; {
		if err := unix.Fallocate(int(f.Fd()), 0, end, size); err == nil {
			end += size
		} else {
			must.ErrorIs(t, err, unix.ENOSPC)
			size /= 2
		}
	}
	_, err = fill(t, path, simulatetest.Size)
	must.ErrorIs(t, err, unix.ENOSPC)
}

func TestBtrfs_DamagedRecordHidesNoOther(t *testing.T) {
	c := btrfs(t)
	good, _ := c.volume(t)
	bad, path := c.volume(t)
	must.NoError(t, os.Remove(path+".json"))
	must.NoError(t, os.Symlink("{", path+".json"))
	must.Eq(t, []string{good}, c.list(t))
	_, err := c.Get(t.Context(), bad)
	for _, err := range []error{err, c.Check(t.Context()), c.Destroy(t.Context(), bad)} {
		must.ErrorContains(t, err, path+".json is damaged")
		oneSentence(t, err)
	}
	must.Eq(t, "content", read(t, path, "file"))
}

func TestBtrfs_RootMustBeSafe(t *testing.T) {
	c := btrfs(t)
	must.NoError(t, os.Chmod(c.pool.Root, 0o777)) //nolint:gosec // that is the fault
	err := c.Check(t.Context())
	must.ErrorIs(t, err, engine.ErrUnavailable)
	must.StrContains(t, err.Error(), "others may write to "+c.pool.Root)
	must.NoError(t, os.Chmod(c.pool.Root, 0o711)) //nolint:gosec // tasks go through it
	must.NoError(t, c.Check(t.Context()))
	name, path := c.volume(t)
	for dir, mode := range map[string]os.FileMode{"default": 0o711, ".new": 0o700} {
		info, err := os.Stat(filepath.Join(c.pool.Root, dir))
		must.NoError(t, err)
		must.Eq(t, mode, info.Mode().Perm(), must.Sprint(dir))
	}
	testsupport.AsUser(t, 65534, func() error { // a task reaches what it is given, and no other name
		if _, err := os.Stat(path); err != nil {
			return err
		}
		_, err := os.ReadDir(filepath.Dir(path))
		must.ErrorIs(t, err, os.ErrPermission)
		return nil
	})
	link := filepath.Join(t.TempDir(), "link")
	must.NoError(t, os.Symlink(c.pool.Root, link))
	e, err := engine.Open("btrfs", c.pool.Program, link)
	must.NoError(t, err)
	d, err := e.Get(context.Background(), name)
	must.NoError(t, err)
	must.Eq(t, path, d.Path)
}

// deletesNothing is an engine as of a process that is killed before it deletes a subvolume.
func (c column) deletesNothing(t *testing.T) *engine.Engine {
	t.Helper()
	program := filepath.Join(t.TempDir(), "btrfs")
	must.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n[ \"$1 $2\" != 'subvolume delete' ] && exec "+
		c.pool.Program+" \"$@\"\nkill -9 $$\n"), 0o700))
	e, err := engine.Open(c.pool.Backend, program, c.pool.Root)
	must.NoError(t, err)
	return e
}

// What a rollback has left is not what has the key of the snapshots any more, wherever the dataset is.
func TestBtrfs_KeepsTheSnapshotsOfWhatWasDiscardedAfterARollback(t *testing.T) {
	c := btrfs(t)
	name, _ := c.volume(t)
	must.NoError(t, c.Snapshot(t.Context(), name, "s"))
	must.NoError(t, c.deletesNothing(t).Rollback(t.Context(), name, "s", false))

	must.NoError(t, c.Rename(t.Context(), name, ".trash/x"))
	must.NoError(t, c.Check(t.Context())) // removes what the rollback has left
	trash := c.list(t)
	must.SliceLen(t, 1, trash)
	snapshots, err := c.Snapshots(t.Context(), trash[0])
	must.NoError(t, err)
	must.SliceLen(t, 1, snapshots)
	must.NoError(t, c.Destroy(t.Context(), trash[0]))
	c.nothingLeft(t)
}

// A process that was killed between the two renames of a move leaves the record behind.
func TestBtrfs_FindsWhatWasHalfRenamedByItsNewName(t *testing.T) {
	c := btrfs(t)
	from, _ := c.volume(t)
	to := c.name()
	must.NoError(t, c.Rename(t.Context(), from, to))
	root := c.pool.Root
	must.NoError(t, os.Rename(filepath.Join(root, to+".json"), filepath.Join(root, from+".json")))
	d, err := c.Get(t.Context(), to)
	must.NoError(t, err)
	must.EqOp(t, 64*mib, d.Limits.Data)
	must.NoError(t, c.Destroy(t.Context(), to))
	c.nothingLeft(t)
}

// What was left of a destroy stays while a process uses it, and hinders nothing else.
func TestBtrfs_SweepGoesOnAfterWhatIsInUse(t *testing.T) {
	c := btrfs(t)
	one, _ := c.volume(t)
	other, _ := c.volume(t)
	for _, name := range []string{one, other} {
		must.Error(t, c.deletesNothing(t).Destroy(t.Context(), name))
	}
	left, err := filepath.Glob(filepath.Join(c.pool.Root, ".new/.gone.*/file"))
	must.NoError(t, err)
	must.SliceLen(t, 2, left)
	user, err := os.Open(left[0]) // the first that is looked at
	must.NoError(t, err)
	must.NoError(t, c.Check(t.Context()))
	must.FileExists(t, left[0])
	must.FileNotExists(t, left[1])
	must.NoError(t, user.Close())
	must.NoError(t, c.Check(t.Context()))
	c.nothingLeft(t)
}

// A rollback that is killed after the exchange has left a dataset that may have a user still.
func TestBtrfs_SweepLeavesWhatWasReplacedToItsUsers(t *testing.T) {
	c := btrfs(t)
	name, _ := c.volume(t)
	must.NoError(t, c.Snapshot(t.Context(), name, "s"))
	must.NoError(t, c.deletesNothing(t).Rollback(t.Context(), name, "s", false))
	left, err := filepath.Glob(filepath.Join(c.pool.Root, ".new/.*/data/file"))
	must.NoError(t, err)
	must.SliceLen(t, 1, left)
	user, err := os.Open(left[0])
	must.NoError(t, err)
	must.NoError(t, c.Check(t.Context()))
	must.FileExists(t, left[0])
	must.ErrorIs(t, c.Rollback(t.Context(), name, "s", false), engine.ErrInUse)
	must.NoError(t, user.Close())
	must.NoError(t, c.Check(t.Context()))
	must.FileNotExists(t, left[0])
	must.NoError(t, c.Destroy(t.Context(), name))
	c.nothingLeft(t)
}
