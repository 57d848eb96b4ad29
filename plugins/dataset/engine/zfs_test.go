// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// The test exports its pool, so it is not parallel to TestEngine_Operations, which may use the same pool (poolsVar).
func TestZFS_Properties(t *testing.T) {
	eachColumn(t, func(t *testing.T, c column) {
		for _, row := range []struct {
			about string
			run   func(t *testing.T, c zfsColumn)
		}{
			{"a mount point belongs to its dataset alone", mountPoints},
			{"a user's mount with the name of a dataset is ignored", usersMount},
			{"inherited tags are ignored", tagsAreItsOwn},
			{"a property can't forge another dataset", forged},
			{"a rollback leaves no empty directory at the mount point", bare},
			{"a new dataset has the engine's properties", reserved},
			{"a foreign dataset is left alone", another},
			{"a dataset in a full pool can be deleted", full},
			{"a dataset in the trash stays unmounted", trashStaysUnmounted},
			{"a missing pool is an error, and never means a missing dataset", unavailable},
		} {
			t.Run(row.about, func(t *testing.T) { row.run(t, zfsColumn{c}) })
		}
	})
}

type zfsColumn struct{ column }

func (c zfsColumn) zfs(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(run(t, c.pool.Program, args...))
}

func (c zfsColumn) full(name string) string { return c.pool.Root + "/" + name }

func (c zfsColumn) zpool(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, "/usr/sbin/zpool", args...)
}

func (c zfsColumn) poolName() string {
	name, _, _ := strings.Cut(c.pool.Root, "/")
	return name
}

// export exports the pool, as a shutdown does, and returns a function that imports it again.
func (c zfsColumn) export(t *testing.T) (again func(options ...string)) {
	t.Helper()
	device := regexp.MustCompile(`/\S+`).FindString(strings.SplitN(c.zpool(t, "status", c.poolName()), "config:", 2)[1])
	testsupport.Within(t, time.Minute, func() error { // may fail at first, while zfs-fuse is busy
		return exec.Command("/usr/sbin/zpool", "export", c.poolName()).Run()
	})
	return func(options ...string) {
		c.zpool(t, append(append([]string{"import", "-o", "cachefile=none", "-d", filepath.Dir(device)}, options...),
			c.poolName())...)
	}
}

// isMounted reports whether this process sees a mount of a dataset.
func (c zfsColumn) isMounted(t *testing.T, name string) bool {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.NoError(t, err)
	return strings.Contains(string(mounts), c.full(name)+" ")
}

func trashStaysUnmounted(t *testing.T, c zfsColumn) {
	kept, deleted := c.name(), c.name()
	write(t, c.create(t, kept, engine.Limits{Data: 32 * mib}), "file", "kept")
	path := c.create(t, deleted, engine.Limits{Data: 32 * mib})
	must.NoError(t, c.Discard(t.Context(), deleted, 0))
	trash := c.list(t)[0]
	must.True(t, engine.InTrash(trash))
	c.cleanUp(t, trash)
	must.False(t, testsupport.Exists(path)) // Discard has removed the mount point

	zfsfusetest.Unmount(t, c.dir(kept))
	c.export(t)()
	c.zfs(t, "mount", "-a")
	must.False(t, c.isMounted(t, trash))
	must.False(t, c.isMounted(t, kept)) // because canmount is noauto
	must.Eq(t, "kept", read(t, c.mount(t, kept), "file"))
}

func tagsAreItsOwn(t *testing.T, c zfsColumn) {
	name := c.name()
	c.create(t, name, engine.Limits{Data: 32 * mib})
	below := name + "/child"
	c.zfs(t, "create", "-o", "mountpoint=none", c.full(below))
	must.StrContains(t, c.zfs(t, "get", "-H", "-o", "value", "outrider:dataset", c.full(below)), "volume") // inherited
	err := c.Destroy(t.Context(), name)
	must.ErrorIs(t, err, engine.ErrForeign)
	must.StrContains(t, err.Error(), below)
	oneSentence(t, err)
	must.Eq(t, []string{name}, c.list(t))
	c.zfs(t, "destroy", c.full(below))

	sibling := filepath.Dir(name) + "/sibling"
	c.zfs(t, "set", `outrider:dataset={"kind":"volume"}`, c.full(filepath.Dir(name)))
	t.Cleanup(func() { c.zfs(t, "inherit", "outrider:dataset", c.full(filepath.Dir(name))) })
	c.zfs(t, "create", "-o", "mountpoint=none", c.full(sibling))
	t.Cleanup(func() { c.zfs(t, "destroy", c.full(sibling)) })
	must.SliceNotContains(t, c.list(t), sibling)
	_, err = c.Get(t.Context(), sibling)
	must.ErrorIs(t, err, engine.ErrForeign)
}

func mountPoints(t *testing.T, c zfsColumn) {
	name := c.name()
	path := c.create(t, name, engine.Limits{Data: 32 * mib})
	must.NoError(t, os.Chmod(path, 0o777))
	zfsfusetest.Unmount(t, path)
	info, err := os.Stat(path)
	must.NoError(t, err)
	must.Eq(t, 0, info.Mode().Perm()) // a task that is not root can't write to the mount point

	write(t, path, "hidden", "x") // but root can
	_, err = c.Mount(t.Context(), name, path)
	must.ErrorContains(t, err, "mount point of a dataset: directory not empty; move ")
	oneSentence(t, err)
	must.False(t, c.isMounted(t, name))
	must.NoError(t, os.Remove(filepath.Join(path, "hidden")))

	must.NoError(t, syscall.Mount("tmpfs", path, "tmpfs", 0, ""))
	_, err = c.Mount(t.Context(), name, path)
	must.ErrorContains(t, err, "failed to make the mount point of a dataset: device or resource busy; move "+path+" away")
	must.NoError(t, syscall.Unmount(path, 0))

	other, err := c.Mount(t.Context(), name, path+"-other") // as another agent would mount it
	must.NoError(t, err)
	must.Eq(t, path+"-other", other)
	must.Eq(t, path, c.mount(t, name))
	info, err = os.Stat(path)
	must.NoError(t, err)
	must.Eq(t, 0o777, info.Mode().Perm())
	must.DirNotExists(t, other)

	must.NoError(t, os.Symlink(path, path+"-link"))
	_, err = c.Mount(t.Context(), name, path+"-link")
	must.ErrorContains(t, err, "mount point of a dataset: not a directory; move ")
	must.Eq(t, path, c.mount(t, name))
}

func usersMount(t *testing.T, c zfsColumn) {
	name, at := c.name(), t.TempDir()
	zfsfusetest.Unmount(t, c.create(t, name, engine.Limits{Data: 32 * mib}))
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer fuse.Close()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=1000,group_id=1000", fuse.Fd()) // as fusermount sets them
	must.NoError(t, syscall.Mount(c.full(name), at, "fuse.zfs", syscall.MS_NOSUID|syscall.MS_NODEV, options))
	defer func() { must.NoError(t, syscall.Unmount(at, syscall.MNT_DETACH)) }()
	d, err := c.Get(t.Context(), name)
	must.NoError(t, err)
	must.Eq(t, "", d.Path)
}

func unavailable(t *testing.T, c zfsColumn) {
	name := c.name()
	path := c.create(t, name, engine.Limits{Data: 32 * mib})
	write(t, path, "file", "kept")

	late, cancel := context.WithCancel(t.Context())
	cancel()
	err := c.Check(late)
	must.ErrorIs(t, err, engine.ErrUnavailable)
	must.StrNotContains(t, err.Error(), "imported")

	c.zfs(t, "set", "readonly=on", c.pool.Root)
	err = c.Check(t.Context())
	must.ErrorIs(t, err, engine.ErrUnavailable)
	must.ErrorContains(t, err, "read-only")
	l, err := c.Look(t.Context())
	must.NoError(t, err)
	must.ErrorIs(t, l.Problem, engine.ErrUnavailable)
	must.SliceContains(t, c.list(t), name)
	c.zfs(t, "inherit", "readonly", c.pool.Root)
	must.NoError(t, c.Check(t.Context()))

	zfsfusetest.Unmount(t, path)
	again := c.export(t)
	_, listErr := c.List(t.Context())
	_, getErr := c.Get(t.Context(), name)
	_, mountErr := c.Mount(t.Context(), name, path)
	spec := engine.Spec{Tags: engine.Tags{engine.Kind: "volume"}, Dir: c.dir("new")}
	_, createErr := c.Create(t.Context(), c.name(), spec)
	_, lookErr := c.Look(t.Context())
	for what, err := range map[string]error{"check": c.Check(t.Context()), "list": listErr, "get": getErr,
		"mount": mountErr, "create": createErr, "look": lookErr, "destroy": c.Destroy(t.Context(), name),
		"rename": c.Rename(t.Context(), name, c.name())} {
		must.ErrorIs(t, err, engine.ErrUnavailable, must.Sprint(what))
		must.True(t, !errors.Is(err, engine.ErrNotFound), must.Sprint(what)) // callers would think the dataset is lost
		oneSentence(t, err)
	}
	must.False(t, testsupport.Exists(c.dir("new")))
	must.SliceEmpty(t, entries(t, path)) // nothing was written to the root file system
	if c.kind == "zfs" {
		again("-o", "readonly=on")
		err := c.Check(t.Context())
		must.ErrorIs(t, err, engine.ErrUnavailable)
		_, err = c.Create(t.Context(), c.name(), engine.Spec{Tags: engine.Tags{engine.Kind: "volume"}})
		must.ErrorIs(t, err, engine.ErrUnavailable)
		oneSentence(t, err)
		again = c.export(t)
	}
	again()
	must.NoError(t, c.Check(t.Context()))
	must.Eq(t, "kept", read(t, c.mount(t, name), "file"))
}

func full(t *testing.T, c zfsColumn) {
	name, filler := c.name(), c.name()
	c.create(t, name, engine.Limits{})
	c.create(t, filler, engine.Limits{})
	l, err := c.Look(t.Context())
	must.NoError(t, err)
	for reserve := l.Space.Free - 64*mib; ; reserve -= 64 * mib { // searches for the largest that fits
		must.Positive(t, reserve)
		if exec.Command(c.pool.Program, "set", fmt.Sprint("refreservation=", reserve), c.full(filler)).Run() == nil {
			break
		}
	}
	_, err = fill(t, c.dir(name), 256*mib)
	must.True(t, isFull(err))
	d, err := c.Get(t.Context(), name) // works although the pool is full
	must.NoError(t, err)
	must.Less(t, 257*mib, d.Usage.Data)
	err = c.Discard(t.Context(), name, 0)
	if c.kind == "zfs-fuse" { // unlike OpenZFS, zfs-fuse reserves no space for a rename
		must.ErrorIs(t, err, engine.ErrNoSpace)
		oneSentence(t, err)
		must.True(t, c.isMounted(t, name))
		must.NoError(t, c.Destroy(t.Context(), name))
		return
	}
	must.NoError(t, err)
	for _, n := range c.list(t) {
		if engine.InTrash(n) {
			must.NoError(t, c.Destroy(t.Context(), n))
		}
	}
}

func reserved(t *testing.T, c zfsColumn) {
	name := c.name()
	c.cleanUp(t, name)
	_, err := c.Create(t.Context(), name, engine.Spec{Tags: engine.Tags{engine.Kind: "volume"}})
	must.NoError(t, err)
	for property, want := range map[string]string{"canmount": "noauto", "mountpoint": "none", "setuid": "off",
		"devices": "off"} {
		must.Eq(t, want, c.zfs(t, "get", "-H", "-o", "value", property, c.full(name)))
	}
}

// A received stream can set any property. A value that looks like more lines of zfs's output must not count as
// properties of another dataset.
func forged(t *testing.T, c zfsColumn) {
	name := c.name()
	c.create(t, name, engine.Limits{Data: 32 * mib})
	theirs := foreign(t, c.column)
	line := func(property string) string {
		return "x\n" + c.full(".trash/gone") + "\t" + property + "\t{}\tlocal\n"
	}
	c.zfs(t, "set", "other:note="+line("outrider:dataset"), c.full(theirs))
	must.Eq(t, []string{name}, c.list(t))
	c.zfs(t, "set", "outrider:dataset="+line("type"), c.full(theirs))
	_, err := c.List(t.Context())
	must.ErrorContains(t, err, "another program changed the property")
	oneSentence(t, err)
	c.zfs(t, "inherit", "outrider:dataset", c.full(theirs))
}

// During a rollback the mount point does not exist: a task that starts must not get an empty directory of the host.
func bare(t *testing.T, c zfsColumn) {
	name := c.name()
	path := c.create(t, name, engine.Limits{Data: 32 * mib})
	must.NoError(t, c.Snapshot(t.Context(), name, "s"))
	dir := t.TempDir()
	program, seen := filepath.Join(dir, "zfs"), filepath.Join(dir, "seen")
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in rollback | destroy) [ -e %q ]; echo $1 $? >>%q ;; esac\nexec %q \"$@\"\n",
		path, seen, c.pool.Program)
	must.NoError(t, os.WriteFile(program, []byte(script), 0o755))
	e := engine.Open(program, c.pool.Root)
	must.NoError(t, e.Rollback(t.Context(), name, "s"))
	c.mount(t, name)
	must.NoError(t, e.Destroy(t.Context(), name))
	must.DirNotExists(t, path)
	text, err := os.ReadFile(seen)
	must.NoError(t, err)
	must.Eq(t, "rollback 1\ndestroy 1\n", string(text))
}

func another(t *testing.T, c zfsColumn) {
	name := c.name()
	c.create(t, name, engine.Limits{Data: 32 * mib})
	theirs := foreign(t, c.column)
	must.ErrorIs(t, c.Rename(t.Context(), name, theirs), engine.ErrExists)
	must.ErrorIs(t, c.Tag(t.Context(), theirs, engine.Tags{engine.Kind: "volume"}), engine.ErrForeign)
	_, err := c.Mount(t.Context(), theirs, c.dir(theirs))
	must.ErrorIs(t, err, engine.ErrForeign)
	c.mount(t, name)
}
