// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

const mib = 1 << 20

// operations test the methods of Engine, on each implementation of ZFS.
var operations = []struct {
	method, does string
	run          func(t *testing.T, c column)
}{
	{"Check", "returns nil, or names the fault", func(t *testing.T, c column) {
		must.NoError(t, c.Check(t.Context()))
		for _, bad := range []struct{ program, root string }{
			{"/no/such/program", c.pool.Root}, {c.pool.Program, c.pool.Root + "/none"},
		} {
			e := engine.Open(bad.program, bad.root)
			err := e.Check(t.Context())
			must.ErrorIs(t, err, engine.ErrUnavailable)
			oneSentence(t, err)
		}
	}},
	{"Look", "returns the space of the file system", func(t *testing.T, c column) {
		l, err := c.Look(t.Context())
		must.NoError(t, err)
		must.NoError(t, l.Problem)
		must.Between(t, 100*mib, l.Space.Free, l.Space.Size)
	}},
	{"Create", "makes an empty dataset with limits and tags", func(t *testing.T, c column) {
		name := c.name()
		c.cleanUp(t, name)
		tags := engine.Tags{engine.Kind: "volume", engine.Volume: `a "name" with ünicode`, engine.Namespace: "default"}
		path, err := c.Create(t.Context(), name, engine.Spec{Limits: engine.Limits{Data: 32 * mib, Snapshots: 8 * mib},
			Tags: tags, Dir: c.dir(name)})
		must.NoError(t, err)
		files, err := os.ReadDir(path)
		must.NoError(t, err)
		must.SliceEmpty(t, files)
		d, err := c.Get(t.Context(), name)
		must.NoError(t, err)
		must.Eq(t, path, d.Path)
		must.Eq(t, tags, d.Tags)
		must.Eq(t, engine.Limits{Data: 32 * mib, Snapshots: 8 * mib}, d.Limits)
		must.False(t, d.Created.IsZero())
	}},
	{"Create", "refuses a name that is taken", func(t *testing.T, c column) {
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: 32 * mib})
		write(t, path, "file", "kept")
		_, err := c.Create(t.Context(), name, engine.Spec{Dir: c.dir(name)})
		must.ErrorIs(t, err, engine.ErrExists)
		oneSentence(t, err)
		must.Eq(t, "kept", read(t, path, "file"))
	}},
	{"Create", "refuses a name that leads elsewhere", func(t *testing.T, c column) {
		before := c.list(t)
		for _, name := range []string{"", "/", "..", "../x", "default/..", "default/../x", "/default/x", "default/x/y",
			"default//x", "default/x\ny", "default/x\x00", ".snapshots/x", "default/.x", strings.Repeat("x", 300)} {
			_, err := c.Create(t.Context(), name, engine.Spec{Dir: c.dir("bad"), Tags: engine.Tags{engine.Kind: "volume"}})
			must.Error(t, err, must.Sprintf("%q", name))
		}
		must.Eq(t, before, c.list(t))
	}},
	{"Get", "distinguishes missing and foreign datasets", func(t *testing.T, c column) {
		_, err := c.Get(t.Context(), c.name())
		must.ErrorIs(t, err, engine.ErrNotFound)
		oneSentence(t, err)
		name := foreign(t, c)
		_, err = c.Get(t.Context(), name)
		must.ErrorIs(t, err, engine.ErrForeign)
		_, err = c.Create(t.Context(), name, engine.Spec{Dir: c.dir(name), Tags: engine.Tags{engine.Kind: "volume"}})
		must.ErrorIs(t, err, engine.ErrForeign)
		must.ErrorIs(t, c.Destroy(t.Context(), name), engine.ErrForeign)
		must.ErrorIs(t, c.Rename(t.Context(), name, c.name()), engine.ErrForeign)
		must.SliceNotContains(t, c.list(t), name)
	}},
	{"Get", "counts written bytes", func(t *testing.T, c column) {
		name := c.name()
		_, err := fill(t, c.create(t, name, engine.Limits{Data: 64 * mib}), 4*mib)
		must.NoError(t, err)
		c.soon(t, name, func(d engine.Dataset) bool { return d.Usage.Data >= 4*mib && d.Usage.Data < 5*mib })
	}},
	{"List", "returns datasets in order of name", func(t *testing.T, c column) {
		a, b := c.name(), c.name()
		c.create(t, b, engine.Limits{Data: 32 * mib})
		c.create(t, a, engine.Limits{Data: 32 * mib})
		all := c.list(t)
		must.SliceContainsAll(t, []string{a, b}, all)
		must.True(t, slices.IsSorted(all))
	}},
	{"Mount", "can be called again", func(t *testing.T, c column) {
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: 32 * mib})
		write(t, path, "file", "content")
		for range 2 {
			must.Eq(t, path, c.mount(t, name))
			must.Eq(t, "content", read(t, path, "file"))
		}
		_, err := c.Mount(t.Context(), c.name(), c.dir("none"))
		must.ErrorIs(t, err, engine.ErrNotFound)
	}},
	{"Tag", "keeps the other tags, even of a full dataset", func(t *testing.T, c column) {
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: 16 * mib})
		_, err := fill(t, path, 64*mib)
		must.True(t, isFull(err))
		must.NoError(t, c.Tag(t.Context(), name, engine.Tags{engine.Holder: "a/b", engine.From: "x"}))
		must.NoError(t, c.Tag(t.Context(), name, engine.Tags{engine.Holder: "c/d", engine.From: ""}))
		d, err := c.Get(t.Context(), name)
		must.NoError(t, err)
		must.Eq(t, engine.Tags{engine.Kind: "volume", engine.Holder: "c/d"}, d.Tags)
		must.ErrorIs(t, c.Tag(t.Context(), c.name(), engine.Tags{engine.Holder: "a/b"}), engine.ErrNotFound)
	}},
	{"Resize", "changes the limits, but not below the space in use", func(t *testing.T, c column) {
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: 16 * mib})
		_, err := fill(t, path, 64*mib)
		must.True(t, isFull(err))
		c.soon(t, name, func(d engine.Dataset) bool { return d.Usage.Data > 14*mib })
		err = c.Resize(t.Context(), name, engine.Limits{Data: 8 * mib})
		must.ErrorIs(t, err, engine.ErrTooSmall)
		oneSentence(t, err)
		d, err := c.Get(t.Context(), name)
		must.NoError(t, err)
		must.Eq(t, engine.Limits{Data: 16 * mib}, d.Limits)
		must.NoError(t, c.Resize(t.Context(), name, engine.Limits{Data: 48 * mib, Snapshots: 8 * mib}))
		written, err := fill(t, path, 40*mib)
		must.NoError(t, err, must.Sprint(written))
		must.NoError(t, os.Remove(filepath.Join(path, "filling")))
		c.soon(t, name, func(d engine.Dataset) bool { return d.Usage.Data < mib })
		must.NoError(t, c.Resize(t.Context(), name, engine.Limits{Data: 16 * mib}))
		_, err = fill(t, path, 40*mib)
		must.True(t, isFull(err))
		must.ErrorIs(t, c.Resize(t.Context(), c.name(), engine.Limits{Data: mib}), engine.ErrNotFound)
	}},
	{"Rename", "keeps content, snapshots and tags", func(t *testing.T, c column) {
		name, to := c.name(), ".trash/"+filepath.Base(c.name())
		path := c.create(t, name, engine.Limits{Data: 32 * mib})
		c.cleanUp(t, to)
		write(t, path, "file", "one")
		must.NoError(t, c.Snapshot(t.Context(), name, "s1"))
		write(t, path, "file", "two")
		before, err := c.Get(t.Context(), name)
		must.NoError(t, err)
		must.NoError(t, c.Rename(t.Context(), name, to))
		_, err = c.Get(t.Context(), name)
		must.ErrorIs(t, err, engine.ErrNotFound)
		after, err := c.Get(t.Context(), to)
		must.NoError(t, err)
		must.Eq(t, before.Tags, after.Tags)
		must.Eq(t, before.Limits, after.Limits)
		must.Eq(t, []string{"s1"}, c.snapshots(t, to))
		must.Eq(t, "", after.Path)
		must.NoError(t, c.Rename(t.Context(), to, name))
		must.Eq(t, "two", read(t, c.mount(t, name), "file"))
		must.NoError(t, c.Rollback(t.Context(), name, "s1"))
		must.Eq(t, "one", read(t, c.mount(t, name), "file"))
	}},
	{"Rename", "refuses a name that is taken, and a missing dataset", func(t *testing.T, c column) {
		a, b := c.name(), c.name()
		write(t, c.create(t, a, engine.Limits{Data: 32 * mib}), "file", "a")
		write(t, c.create(t, b, engine.Limits{Data: 32 * mib}), "file", "b")
		must.ErrorIs(t, c.Rename(t.Context(), a, b), engine.ErrExists)
		must.Eq(t, "a", read(t, c.mount(t, a), "file"))
		must.Eq(t, "b", read(t, c.mount(t, b), "file"))
		must.ErrorIs(t, c.Rename(t.Context(), c.name(), c.name()), engine.ErrNotFound)
	}},
	{"Discard", "changes nothing while the kernel reports the dataset as busy", func(t *testing.T, c column) {
		name, link := c.name(), filepath.Join(c.dirs, "\x1b[2Jelsewhere")
		path := c.create(t, name, engine.Limits{Data: 32 * mib})
		write(t, path, "file", "old")
		must.NoError(t, c.Snapshot(t.Context(), name, "s1"))
		write(t, path, "file", "kept")
		must.NoError(t, os.Mkdir(filepath.Join(path, "sub"), 0o755))
		must.NoError(t, os.Mkdir(link, 0o755))
		refuse := func(reason string) {
			t.Helper()
			for what, err := range map[string]error{
				"Discard":  c.Discard(t.Context(), name, 0),
				"Destroy":  c.Destroy(t.Context(), name),
				"Rollback": c.Rollback(t.Context(), name, "s1"),
			} {
				must.ErrorIs(t, err, engine.ErrInUse, must.Sprint(what))
				must.ErrorContains(t, err, reason)
				oneSentence(t, err)
			}
			must.Eq(t, "kept", read(t, path, "file"))
			must.Eq(t, []string{"s1"}, c.snapshots(t, name))
		}
		for _, use := range []string{`cd "$1"`, `exec 3<"$1/file"`} {
			_, stop := process(t, nil, use, path)
			refuse(fmt.Sprintf("can't be unmounted from %q", path))
			stop()
		}
		for _, part := range []string{path, filepath.Join(path, "sub")} {
			must.NoError(t, unix.Mount(part, link, "", unix.MS_BIND, ""))
			refuse(fmt.Sprintf("it is mounted at %q", link))
			zfsfusetest.Unmount(t, link)
		}
	}},
	{"Discard", "keeps the files for a task that has them mounted", func(t *testing.T, c column) {
		name, mount := c.name(), t.TempDir()
		path := c.create(t, name, engine.Limits{Data: 32 * mib})
		write(t, path, "file", "kept")
		pid, stop := process(t, &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS},
			`mount --make-rslave / && mount --bind "$1" "$2"`, path, mount)
		theirs := fmt.Sprintf("/proc/%d/root%s", pid, mount)
		in := name
		if c.kind == "zfs" {
			must.NoError(t, c.Snapshot(t.Context(), name, "s1"))
			write(t, path, "file", "kept since")
			for range 2 { // first in place, then in the trash
				must.ErrorIs(t, c.Rollback(t.Context(), in, "s1"), engine.ErrInUse)
				must.ErrorIs(t, c.Destroy(t.Context(), in), engine.ErrInUse)
				must.Eq(t, []string{"s1"}, c.snapshots(t, in))
				must.Eq(t, "kept since", read(t, theirs, "file"))
				if in == name {
					must.NoError(t, c.Discard(t.Context(), name, time.Hour))
					in = c.trash(t)
				}
			}
			must.SliceEmpty(t, entries(t, c.create(t, name, engine.Limits{Data: 32 * mib})))
			write(t, theirs, "file", "and written")
		} else { // zfs-fuse neither renames a mounted dataset nor mounts it again
			must.ErrorIs(t, c.Discard(t.Context(), name, time.Hour), engine.ErrInUse)
			must.Eq(t, "kept", read(t, theirs, "file"))
			must.SliceContains(t, c.list(t), name)
		}
		stop()
		must.NoError(t, c.Destroy(t.Context(), in))
	}},
	{"Destroy", "removes the dataset with its snapshots, and can be called again", func(t *testing.T, c column) {
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: 32 * mib})
		write(t, path, "file", "x")
		must.NoError(t, c.Snapshot(t.Context(), name, "s1"))
		for range 2 {
			must.NoError(t, c.Destroy(t.Context(), name))
		}
		must.False(t, testsupport.Exists(path))
		_, err := c.Get(t.Context(), name)
		must.ErrorIs(t, err, engine.ErrNotFound)
		must.SliceEmpty(t, entries(t, c.create(t, name, engine.Limits{Data: 32 * mib})))
		must.SliceEmpty(t, c.snapshots(t, name))
	}},
	{"Snapshot", "keeps the old content, under a unique name", func(t *testing.T, c column) {
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: 64 * mib})
		_, err := fill(t, path, 4*mib)
		must.NoError(t, err)
		must.NoError(t, c.Snapshot(t.Context(), name, "one"))
		must.ErrorIs(t, c.Snapshot(t.Context(), name, "one"), engine.ErrExists)
		must.Error(t, c.Snapshot(t.Context(), name, "../one"))
		must.ErrorIs(t, c.Snapshot(t.Context(), c.name(), "one"), engine.ErrNotFound)
		must.NoError(t, os.Remove(filepath.Join(path, "filling")))
		c.soon(t, name, func(d engine.Dataset) bool { return d.Usage.Data < mib && d.Usage.Snapshots >= 4*mib })
	}},
	{"Snapshots", "are listed oldest first", func(t *testing.T, c column) {
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: 64 * mib})
		_, err := fill(t, path, 4*mib)
		must.NoError(t, err)
		for _, s := range []string{"z", "a", "m"} {
			must.NoError(t, c.Snapshot(t.Context(), name, s))
		}
		must.Eq(t, []string{"z", "a", "m"}, c.snapshots(t, name))
	}},
	{"Destroy", "names the snapshots that are held", func(t *testing.T, c column) {
		name := c.name()
		c.create(t, name, engine.Limits{Data: 32 * mib})
		must.NoError(t, c.Snapshot(t.Context(), name, "s"))
		full := c.pool.Root + "/" + name + "@s"
		run(t, c.pool.Program, "hold", "mine", full)
		err := c.Destroy(t.Context(), name)
		must.ErrorIs(t, err, engine.ErrInUse)
		must.ErrorContains(t, err, "snapshots have holds: "+full+" (see: zfs holds "+full+")")
		oneSentence(t, err)
		run(t, c.pool.Program, "release", "mine", full)
	}},
	{"Rollback", "restores the old bytes, and loses no later snapshot", func(t *testing.T, c column) {
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: 64 * mib})
		for _, s := range []string{"one", "two"} {
			write(t, path, "file", s)
			must.NoError(t, c.Snapshot(t.Context(), name, s))
		}
		write(t, path, "file", "three")
		must.ErrorIs(t, c.Rollback(t.Context(), name, "one"), engine.ErrLaterSnapshots)
		must.Eq(t, "three", read(t, c.mount(t, name), "file"))
		must.Eq(t, []string{"one", "two"}, c.snapshots(t, name))
		run(t, c.pool.Program, "destroy", c.pool.Root+"/"+name+"@two")
		must.NoError(t, c.Rollback(t.Context(), name, "one"))
		must.Eq(t, "one", read(t, c.mount(t, name), "file"))
		must.Eq(t, []string{"one"}, c.snapshots(t, name))
		must.ErrorIs(t, c.Rollback(t.Context(), name, "none"), engine.ErrNotFound)
		must.Eq(t, "one", read(t, c.mount(t, name), "file"))
		written, err := fill(t, c.mount(t, name), 128*mib) // the limit still holds
		must.True(t, isFull(err))
		must.Between(t, 60*mib, written, 64*mib)
	}},
	{"Clone", "has a snapshot's content, and its own limits", func(t *testing.T, c column) {
		name, to := c.name(), c.name()
		path := c.create(t, name, engine.Limits{Data: 64 * mib})
		write(t, path, "file", "one")
		must.NoError(t, c.Snapshot(t.Context(), name, "s"))
		write(t, path, "file", "two")
		c.cleanUp(t, to)
		tags := engine.Tags{engine.Kind: "volume", engine.Volume: "clone"}
		spec := engine.Spec{Limits: engine.Limits{Data: 16 * mib}, Tags: tags, Dir: c.dir(to)}
		clone, err := c.Clone(t.Context(), name, "s", to, spec)
		must.NoError(t, err)
		must.Eq(t, "one", read(t, clone, "file"))
		write(t, clone, "file", "three")
		must.Eq(t, "two", read(t, path, "file"))
		d, err := c.Get(t.Context(), to)
		must.NoError(t, err)
		must.Eq(t, tags, d.Tags)
		must.Eq(t, spec.Limits, d.Limits)
		written, err := fill(t, clone, 64*mib)
		must.True(t, isFull(err))
		must.Between(t, 14*mib, written, 16*mib)

		_, err = c.Clone(t.Context(), name, "s", to, spec)
		must.ErrorIs(t, err, engine.ErrExists)
		_, err = c.Clone(t.Context(), name, "none", c.name(), spec)
		must.ErrorIs(t, err, engine.ErrNotFound)

		err = c.Destroy(t.Context(), name)
		must.ErrorIs(t, err, engine.ErrHasClones)
		must.StrContains(t, err.Error(), " is the origin of the clone "+c.pool.Root+"/"+to)
		must.Eq(t, "three", read(t, c.mount(t, to), "file"))
		must.NoError(t, c.Destroy(t.Context(), to)) // a clone must be destroyed before its origin
	}},
	{"Clone", "and its origin can have snapshots", func(t *testing.T, c column) {
		name, to := c.name(), c.name()
		path := c.create(t, name, engine.Limits{Data: 32 * mib})
		must.NoError(t, c.Snapshot(t.Context(), name, "s"))
		c.cleanUp(t, to)
		clone, err := c.Clone(t.Context(), name, "s", to, engine.Spec{Limits: engine.Limits{Data: 16 * mib}, Dir: c.dir(to),
			Tags: engine.Tags{engine.Kind: "volume"}})
		must.NoError(t, err)
		must.NoError(t, c.Snapshot(t.Context(), to, "own"))
		must.NoError(t, c.Snapshot(t.Context(), name, "later"))
		must.Eq(t, []string{"own"}, c.snapshots(t, to))
		must.Eq(t, []string{"s", "later"}, c.snapshots(t, name))
		for dir, limit := range map[string]int64{clone: 16 * mib, path: 32 * mib} { // the limits still hold
			written, err := fill(t, dir, 64*mib)
			must.True(t, isFull(err))
			must.Between(t, limit-2*mib, written, limit)
		}
		must.NoError(t, c.Destroy(t.Context(), to))
	}},
	{"Adopt", "accepts a dataset of another tool, once it can be a volume", func(t *testing.T, c column) {
		name := "brought" + filepath.Base(c.name())
		full := c.pool.Root + "/" + name
		refused := func(name, want string) {
			t.Helper()
			_, err := c.Adoptable(t.Context(), name)
			must.ErrorContains(t, err, want)
			oneSentence(t, err)
		}
		refused(name, "does not exist")
		refused("a/b/c", "can't be the name of a dataset")
		refused(".trash/x", "is reserved for the plugin")
		mount := filepath.Join(c.dirs, name)
		run(t, c.pool.Program, "create", "-o", "mountpoint="+mount, full)
		write(t, mount, "file", "theirs")
		refused(name, "is mounted at "+mount+": unmount it first")
		zfsfusetest.Unmount(t, mount)
		refused(name, "has no refquota, which is a volume's capacity")
		run(t, c.pool.Program, "set", "refquota=32M", full)
		run(t, c.pool.Program, "create", "-o", "mountpoint=none", full+"/below")
		refused(name, "has a child dataset "+full+"/below")
		run(t, c.pool.Program, "destroy", full+"/below")
		if c.kind == "zfs" { // zfs-fuse does not support block devices
			run(t, c.pool.Program, "create", "-V", "1M", full+"-device")
			refused(name+"-device", "is a ZFS volume, not a file system")
			run(t, c.pool.Program, "destroy", full+"-device")
		}
		run(t, c.pool.Program, "set", "readonly=on", full)
		run(t, c.pool.Program, "snapshot", full+"@theirs")

		d, err := c.Adoptable(t.Context(), name)
		must.NoError(t, err)
		must.Eq(t, 32*mib, d.Limits.Data)
		must.MapEmpty(t, d.Tags)
		must.SliceNotContains(t, c.list(t), name)
		tags := engine.Tags{engine.Kind: "volume", engine.Adopt: "key"}
		for range 2 {
			must.NoError(t, c.Adopt(t.Context(), name, tags))
		}
		c.cleanUp(t, name)
		d, err = c.Get(t.Context(), name)
		must.NoError(t, err)
		must.Eq(t, tags, d.Tags)
		must.Eq(t, "none", d.Place)
		must.Eq(t, []string{"theirs"}, c.snapshots(t, name))
		must.Eq(t, "theirs", read(t, c.mount(t, name), "file"))
		write(t, c.dir(name), "file", "ours")
		refused(name, "is mounted at "+c.dir(name))
	}},
	{"Create", "sets a limit that stops writes within 1 MiB", func(t *testing.T, c column) {
		const limit = 64 * mib
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: limit})
		written, err := fill(t, path, 2*limit)
		must.ErrorIs(t, err, unix.EDQUOT)
		must.Between(t, limit-mib, written, limit)
	}},
	{"Snapshot", "does not count against the limit of data", func(t *testing.T, c column) {
		const limit = 16 * mib
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: limit, Snapshots: 64 * mib})
		for i := range 3 {
			written, err := fill(t, path, limit-mib)
			must.NoError(t, err, must.Sprint(written))
			must.NoError(t, c.Snapshot(t.Context(), name, fmt.Sprint("s", i)))
			must.NoError(t, os.Remove(filepath.Join(path, "filling")))
			c.soon(t, name, func(d engine.Dataset) bool { return d.Usage.Data < mib })
		}
		c.soon(t, name, func(d engine.Dataset) bool { return d.Usage.Snapshots >= 3*(limit-2*mib) })
	}},
	{"Snapshot", "is limited in space", func(t *testing.T, c column) {
		name := c.name()
		path := c.create(t, name, engine.Limits{Data: 16 * mib, Snapshots: 8 * mib})
		_, err := fill(t, path, 14*mib)
		must.NoError(t, err)
		must.NoError(t, c.Snapshot(t.Context(), name, "s"))
		c.soon(t, name, func(d engine.Dataset) bool { return d.Usage.Data >= 14*mib })
		written, err := fill(t, path, 14*mib) // the snapshot keeps the overwritten blocks
		must.ErrorIs(t, err, unix.EDQUOT)
		must.Less(t, 12*mib, written)
		run(t, c.pool.Program, "destroy", c.pool.Root+"/"+name+"@s")
		testsupport.Eventually(t, "the space is free again", func() bool {
			unix.Sync()
			_, err := fill(t, path, 14*mib)
			return err == nil
		})
	}},
	{"Create", "makes many datasets concurrently, but only one per name", func(t *testing.T, c column) {
		same := c.name()
		c.cleanUp(t, same)
		errs := make([]error, 9)
		var all sync.WaitGroup
		for i := range errs {
			name := same
			if i > 1 {
				name = c.name()
				c.cleanUp(t, name)
			}
			all.Go(func() {
				ctx, unlock, err := c.Lock(t.Context(), filepath.Base(name), time.Minute)
				if err == nil {
					defer unlock()
					_, err = c.Create(ctx, name, engine.Spec{Limits: engine.Limits{Data: 16 * mib}, Dir: c.dir(name),
						Tags: engine.Tags{engine.Kind: "volume"}})
				}
				errs[i] = err
			})
		}
		all.Wait()
		must.NoError(t, errors.Join(errs[2:]...))
		must.True(t, (errs[0] == nil) != (errs[1] == nil))
		must.ErrorIs(t, errors.Join(errs[:2]...), engine.ErrExists)
	}},
}

func TestEngine_Operations(t *testing.T) {
	t.Parallel()
	eachColumn(t, func(t *testing.T, c column) {
		before := c.list(t)
		for _, o := range operations {
			t.Run(o.method+" "+o.does, func(t *testing.T) { o.run(t, c) })
		}
		must.Eq(t, before, c.list(t))
	})
}

// foreign makes a dataset with the zfs program alone, so the dataset has no tags.
func foreign(t *testing.T, c column) (name string) {
	t.Helper()
	name = c.name()
	run(t, c.pool.Program, "create", "-p", "-o", "mountpoint=none", c.pool.Root+"/"+name)
	t.Cleanup(func() { run(t, c.pool.Program, "destroy", c.pool.Root+"/"+name) })
	return name
}

func run(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	must.NoError(t, err, must.Sprint(program, args, string(out)))
	return string(out)
}

func entries(t testing.TB, path string) []os.DirEntry {
	t.Helper()
	all, err := os.ReadDir(path)
	must.NoError(t, err)
	return all
}

func oneSentence(t testing.TB, err error) {
	t.Helper()
	must.StrNotContains(t, err.Error(), "\n")
}

// process starts a shell that runs the lines and then sleeps. It returns after the lines were run.
func process(t *testing.T, attributes *unix.SysProcAttr, lines string, args ...string) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-ec", lines + "\necho ready\nexec sleep 1000", "sh"}, args...)...)
	cmd.SysProcAttr = attributes
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	must.NoError(t, err)
	return cmd.Process.Pid, stop
}
