// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

const mib = 1 << 20

// cases maps names to tests that share one pool.
type cases map[string]func(*testing.T, *node)

func (c cases) run(t *testing.T) {
	pool := zfsfusetest.New(t)
	for name, run := range c {
		t.Run(name, func(t *testing.T) { run(t, newNode(t, pool)) })
	}
}

func TestVolume(t *testing.T) { volumes.run(t) }

var volumes = cases{
	"is created, restored and deleted":          lives,
	"nobody reads the answer of its create":     unread,
	"its create hangs until the time limit":     wakesUp,
	"has the requested owner":                   owned,
	"is full at its capacity":                   full,
	"grows and shrinks":                         resized,
	"keeps its parameters":                      changed,
	"is deleted by the policy of its class":     deleted,
	"is restored with any operator's file":      restored,
	"is identified by its dataset's tags":       identified,
	"is a clone":                                cloned,
	"is not deleted while it is used":           used,
	"mistakes are one line, and change nothing": mistakes,
	"is created once by concurrent calls":       crowd,
}

func lives(t *testing.T, n *node) {
	n.exe = testBinary(t)
	r := volume()
	got := n.create(r)
	must.Eq(t, 32*mib, got.Bytes)
	put(t, got.Path, "a", "text")
	must.Eq(t, got.Path, n.create(r).Path)
	has(t, got.Path, "a", "text")
	n.only(r)
	must.Eq(t, engine.Tags{"kind": "volume", "id": r.id, "volume": "data", "namespace": "default"}, n.get(r).Tags)

	zfsfusetest.Unmount(t, got.Path) // after a boot nothing is mounted
	must.False(t, testsupport.Exists(filepath.Join(got.Path, "a")))
	n.create(r)
	has(t, got.Path, "a", "text")

	n.delete(r)
	must.False(t, testsupport.Exists(got.Path))
	must.SliceEmpty(t, n.records())
	must.SliceLen(t, 1, n.inTrash())
	n.delete(r) // deletes a missing volume, without an error
	n.delete(volume())
	must.SliceLen(t, 1, n.inTrash())
	n.create(r) // a new volume, even with the same id
	must.False(t, testsupport.Exists(filepath.Join(got.Path, "a")))
	n.delete(r)
	must.SliceLen(t, 2, n.inTrash())

	// Nomad omits the name and the namespace when it deletes a new volume that it failed to save
	n.create(r)
	r.name, r.namespace = "", ""
	n.delete(r)
	must.SliceLen(t, 3, n.inTrash())
}

func owned(t *testing.T, n *node) {
	n.file(`mode = "0770"`)
	for _, c := range []struct {
		r        request
		uid, gid uint32
		mode     os.FileMode
	}{
		{volume(), 0, 0, 0o770},
		{volume("uid", "1234", "gid", "99"), 1234, 99, 0o770},
		{volume("mode", "1777"), 0, 0, os.ModeSticky | 0o777},
	} {
		hasOwner(t, n.create(c.r).Path, c.uid, c.gid, c.mode)
	}
}

func hasOwner(t testing.TB, path string, uid, gid uint32, mode os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	must.NoError(t, err)
	st := info.Sys().(*syscall.Stat_t)
	must.Eq(t, []uint32{uid, gid}, []uint32{st.Uid, st.Gid})
	must.Eq(t, os.ModeDir|mode, info.Mode())
}

func fill(t testing.TB, path string, mibs int) error {
	t.Helper()
	f, err := os.Create(filepath.Join(path, "fill"))
	must.NoError(t, err)
	block := make([]byte, mib)
	for i := range block {
		block[i] = byte(i * 7919 >> 3) // hard to compress
	}
	for range mibs {
		if _, err = f.Write(block); err != nil {
			break
		}
	}
	return errors.Join(err, f.Sync(), f.Close())
}

func full(t *testing.T, n *node) {
	r := volume()
	r.max = 16 * mib
	got := n.create(r)
	err := fill(t, got.Path, 20)
	must.ErrorIs(t, err, syscall.EDQUOT)
	n.create(r) // restores the volume although it is full
	n.delete(r)
}

func resized(t *testing.T, n *node) {
	r := volume()
	r.min, r.max = 16*mib, 64*mib
	got := n.create(r)
	must.Eq(t, 64*mib, got.Bytes)
	must.NoError(t, fill(t, got.Path, 40))
	testsupport.Within(t, time.Minute, func() error { // ZFS updates the usage numbers with a delay
		if used := n.get(r).Usage.Data; used < 40*mib {
			return fmt.Errorf("%d bytes are counted", used)
		}
		return nil
	})
	r.max = 1 << 40 // r.min is allowed, so create lowers the capacity to the class's maximum
	must.Eq(t, 128*mib, n.create(r).Bytes)
	r.min = 0
	n.refused("create", r, `a capacity of 1 TiB is more than class "dir" allows: use at most 128MiB`)
	r.min, r.max = 0, 50*mib
	must.Eq(t, 50*mib, n.create(r).Bytes)
	r.max = 20 * mib
	n.refused("create", r, "too small for the existing data")
	r.max = 8 * mib
	n.refused("create", r, `a capacity of 8 MiB is less than class "dir" allows: use at least 16MiB`)
	r.max = 0 // a request without a capacity changes nothing
	must.Eq(t, 50*mib, n.create(r).Bytes)
	must.Eq(t, 50*mib, n.get(r).Limits.Data)
}

func changed(t *testing.T, n *node) {
	r := volume("uid", "1", "mode", "0750")
	got := n.create(r)
	put(t, got.Path, "a", "text")
	must.NoError(t, os.Chmod(got.Path, 0o711))
	n.create(r) // does not reset the mode that the user has set
	hasOwner(t, got.Path, 1, 0, 0o711)
	n.unchanged(func() {
		n.fails("create", r.with("uid", "2"), `the parameter uid of a volume can't be changed from "1" to "2": make a new volume`)
		n.fails("create", r.with("uid", ""), `the parameter uid of a volume can't be changed from "1" to "": make a new volume`)
		n.fails("create", r.with("class", "other"), `the parameter class of a volume can't be changed from "dir" to "other": make a new volume`)
		n.fails("create", r.with("clone_from", "x@y"), `the parameter clone_from of a volume can't be changed`)
		n.fails("create", r.with("\x1b[2J", "x"), "the parameter [2J of a volume can't be changed")
	})
	n.file(`allow = ["gid"]`)
	has(t, got.Path, "a", "text")
}

func deleted(t *testing.T, n *node) {
	for _, c := range []struct {
		policy string
		kept   time.Duration // how long the trash keeps the dataset; 0: without limit; -1: not at all
	}{{"destroy", -1}, {"trash", time.Hour}, {"retain", 0}} {
		before := len(n.inTrash())
		n.file(`on_delete = "` + c.policy + `" trash_ttl = "1h"`)
		r := volume()
		n.create(r)
		n.delete(r)
		trash := n.inTrash()
		if c.kept < 0 {
			must.SliceLen(t, before, trash)
			continue
		}
		must.SliceLen(t, before+1, trash)
		d := trash[0]
		for _, other := range trash {
			if other.Tags[engine.ID] == r.id {
				d = other
			}
		}
		left, _, ends, err := d.Left()
		must.NoError(t, err)
		must.Eq(t, c.kept > 0, ends)
		if ends {
			must.EqOp(t, time.Hour, left)
		}
	}

	// the class's current policy applies; if the class was removed, the policy in the record applies
	r, s := volume(), volume()
	n.create(r)
	n.create(s)
	n.file(`on_delete = "destroy"`)
	before := len(n.inTrash())
	n.delete(r)
	must.SliceLen(t, before, n.inTrash())
	n.write("")
	n.delete(s)
	must.SliceLen(t, before+1, n.inTrash())

	// the recorded "destroy" may be out of date, so delete keeps the data while the operator's file is unreadable
	n.file(`on_delete = "destroy"`)
	last := volume()
	n.create(last)
	n.write("class {")
	n.delete(last)
	must.SliceLen(t, before+2, n.inTrash())
}

// No change of the operator's file makes a volume vanish.
func restored(t *testing.T, n *node) {
	r := volume("uid", "7")
	r.max = 64 * mib
	path := n.create(r).Path
	put(t, path, "a", "text")
	for name, c := range map[string]struct{ file, refused string }{
		"broken":      {"class {", "is not valid"},
		"mistake":     {n.class("dir", `on_delete = "keep"`), `on_delete "keep" is not known`},
		"no class":    {"", `class "dir" does not exist on this node`},
		"other root":  {strings.Replace(n.class("dir", everything), "/dir", "/other", 1), ""},
		"parameter":   {n.class("dir", `allow = ["gid"]`), `class "dir" does not allow the parameter "uid": use gid`},
		"namespace":   {n.class("dir", everything+` namespaces = ["ops"]`), `class "dir" does not allow namespace "default"`},
		"lower max":   {n.class("dir", `max_capacity = "32MiB" default_capacity = "16MiB"`), "does not allow"},
		"missing":     {"-", "can't be used"},
		"not private": {"!", "other users may write to"},
		"not a file":  {"/", "is not a regular file"},
		"unchanged":   {n.class("dir", everything), ""},
	} {
		t.Run(name, func(t *testing.T) {
			n.t = t
			file := filepath.Join(n.plugins, "dataset.hcl")
			must.NoError(t, os.RemoveAll(file))
			switch c.file {
			case "-":
			case "!":
				n.file("")
				must.NoError(t, os.Chmod(file, 0o666))
			case "/":
				must.NoError(t, os.Mkdir(file, 0o755))
			default:
				n.write(c.file)
			}
			got := n.create(r)
			must.Eq(t, path, got.Path)
			must.Eq(t, 64*mib, got.Bytes)
			has(t, path, "a", "text")
			if c.refused != "" {
				n.refused("create", volume("uid", "7"), c.refused)
			}
			if strings.Contains(c.refused, "valid") || strings.Contains(c.refused, "known") {
				must.StrContains(t, got.stderr, c.refused)
				larger := r
				larger.max = 100 * mib
				n.refused("create", larger, c.refused)
			}
		})
	}
	n.t = t
	must.NoError(t, os.RemoveAll(filepath.Join(n.plugins, "dataset.hcl")))
	n.write("class {")
	n.delete(r)
	must.SliceLen(t, 1, n.inTrash())
}

func identified(t *testing.T, n *node) {
	// another tool's dataset has the name of the new volume's dataset
	r := volume()
	folder := zfsfusetest.Sub(t, n.pool, "dir/default")
	_, err := n.engine("dir").Create(t.Context(), "default/x", engine.Spec{Tags: engine.Tags{engine.Kind: "volume"}})
	must.ErrorContains(t, err, "no dataset can be made below ")
	must.NoError(t, exec.Command(n.pool.Program, "set", "canmount=off", folder).Run())
	foreign := zfsfusetest.Sub(t, n.pool, "dir/default/"+r.id)
	n.refused("create", r, "not made by this plugin")
	n.delete(volume())
	must.SliceEmpty(t, n.records())

	// a dataset has the name of the new volume's dataset, and the tags of another volume
	s := volume()
	_, err = n.engine("dir").Create(t.Context(), engine.VolumeName(s.namespace, s.id), engine.Spec{
		Limits: engine.Limits{Data: 16 * mib}, Dir: filepath.Join(n.volumes, s.id),
		Tags: engine.Tags{engine.Kind: "volume", engine.ID: uuid.NewString(), engine.Namespace: s.namespace}})
	must.NoError(t, err)
	n.refused("create", s, "not made by this plugin")

	// calls use the volume's id with another name or namespace
	v := volume()
	n.create(v)
	other := v
	other.namespace = "ops"
	n.refused("create", other, `is "data" in namespace "default", not "data" in "ops"`)
	n.refused("delete", other, `is in namespace "default", not "ops"`)
	other = v
	other.name = "else"
	n.refused("create", other, `is "data" in namespace "default", not "else" in "default"`)

	// the record is lost: the volume is found by the tags of its dataset
	put(t, n.get(v).Path, "a", "text")
	must.NoError(t, os.RemoveAll(filepath.Join(n.volumes, ".outrider")))
	has(t, n.create(v).Path, "a", "text")
	must.NoError(t, os.RemoveAll(filepath.Join(n.volumes, ".outrider")))
	n.delete(v) // without a record, the volume's files stay
	has(t, n.create(v).Path, "a", "text")
	n.delete(v)
	must.SliceLen(t, 1, n.inTrash())

	// the dataset is lost: create fails, because a new, empty dataset would hide the loss
	n.create(v)
	must.NoError(t, n.engine("dir").Destroy(t.Context(), engine.VolumeName(v.namespace, v.id)))
	n.refused("create", v, "is missing: restore it, or delete the volume")
	n.delete(v)

	must.NoError(t, exec.Command(n.pool.Program, "destroy", foreign).Run())
}

func cloned(t *testing.T, n *node) {
	source := volume()
	source.name, source.max = "source", 64*mib
	path := n.create(source).Path
	put(t, path, "a", "old")
	must.NoError(t, fill(t, path, 20))
	must.NoError(t, n.engine("dir").Snapshot(t.Context(), engine.VolumeName("default", source.id), "monday"))
	put(t, path, "a", "new")
	for _, from := range []string{"source@monday", source.id + "@monday"} {
		clone := volume("clone_from", from, "mode", "0700")
		clone.name, clone.max = "clone", 100*mib
		got := n.create(clone)
		must.Eq(t, 100*mib, got.Bytes)
		has(t, got.Path, "a", "old")
		hasOwner(t, got.Path, 0, 0, 0o700)
		must.Eq(t, clone.id, n.get(clone).Tags[engine.ID])
		has(t, n.create(clone.with("clone_from", "")).Path, "a", "old")
	}
	n.unchanged(func() {
		n.fails("create", volume("clone_from", "source@tuesday"), "@tuesday does not exist")
		n.fails("create", volume("clone_from", "source@-r"), `"-r" can't be the name of a snapshot`)
		n.fails("create", volume("clone_from", "sauce@monday"), `found no volume "sauce" to clone`)
		n.fails("create", volume("clone_from", "clone@monday"), `2 volumes are named "clone": clone one by its id`)
	})
	liar := volume() // older versions allowed a name that is the id of another volume
	n.create(liar)
	must.NoError(t, n.engine("dir").Tag(t.Context(), engine.VolumeName("default", liar.id),
		engine.Tags{engine.Volume: source.id}))
	has(t, n.create(volume("clone_from", source.id+"@monday")).Path, "a", "old")
	others := volume("clone_from", "source@monday")
	others.namespace = "ops"
	n.refused("create", others, `found no volume "source" to clone in namespace "ops"`)
	small := volume("clone_from", "source@monday")
	small.max = 16 * mib
	n.refused("create", small, "a volume of 16777216 bytes can't be a clone of source@monday: ")
}

// holder starts a process whose working directory is the volume, so the volume is in use.
func holder(t *testing.T, path string) (end func()) {
	t.Helper()
	cmd := exec.Command("sleep", testsupport.Mark())
	cmd.Dir = path
	must.NoError(t, cmd.Start())
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	return end
}

func used(t *testing.T, n *node) {
	for _, policy := range []string{"trash", "destroy"} {
		n.file(`on_delete = "` + policy + `"`)
		r := volume()
		path := n.create(r).Path
		put(t, path, "a", "text")
		end := holder(t, path)
		hurried := r
		hurried.test = impatient + "=1"
		said := n.refused("delete", hurried, "is still in use after 300ms")
		must.StrContains(t, said, "in use: device or resource busy")
		has(t, path, "a", "text")
		n.create(r)

		// Nomad's server allows a delete while tasks of the purged job still run: here, the process ends while delete waits
		time.AfterFunc(500*time.Millisecond, end)
		n.delete(r)
		must.SliceEmpty(t, n.records())
		must.False(t, testsupport.Exists(path))
	}
}

func mistakes(t *testing.T, n *node) {
	n.create(volume())
	with := func(change func(*request)) request {
		r := volume()
		change(&r)
		return r
	}
	wrong := map[string]struct {
		r    request
		want string
	}{
		"no class":          {volume("class", ""), `the parameter "class" is missing: use "dir"`},
		"unknown class":     {volume("class", "fast"), `class "fast" does not exist on this node: use "dir"`},
		"namespace":         {volume("class", "other"), `class "other" does not allow namespace "default": use "dir"`},
		"parameter":         {volume("quota", "1"), `class "dir" does not allow the parameter "quota": use `},
		"uid":               {volume("uid", "app"), `the parameter uid "app" is not the number of a user or group`},
		"mode":              {volume("mode", "7777"), `the parameter mode "7777" is not a mode`},
		"clone":             {volume("clone_from", "data"), `the parameter clone_from "data" is not a snapshot of a volume`},
		"clone outside":     {volume("clone_from", "../other/x@y"), `found no volume "../other/x" to clone`},
		"too large":         {with(func(r *request) { r.max = 1 << 40 }), `a capacity of 1 TiB is more than class "dir" allows: use at most 128MiB`},
		"too small":         {with(func(r *request) { r.max = 1 << 10 }), `a capacity of 1 KiB is less than class "dir" allows: use at least 16MiB`},
		"min above max":     {with(func(r *request) { r.min, r.max = 2, 1 }), `capacity_min 2 B is above capacity_max 1 B`},
		"id":                {with(func(r *request) { r.id = "../../etc" }), `DHV_VOLUME_ID "../../etc" is not the id of a volume`},
		"no id":             {with(func(r *request) { r.id = "" }), `DHV_VOLUME_ID "" is not the id of a volume`},
		"path as namespace": {with(func(r *request) { r.namespace = ".trash" }), `DHV_NAMESPACE ".trash" is not a namespace`},
		"no namespace":      {with(func(r *request) { r.namespace = "" }), `DHV_NAMESPACE "" is not a namespace`},
		"name":              {with(func(r *request) { r.name = "a\tb" }), `"a\tb" can't be the name of a volume`},
		"name with a /":     {with(func(r *request) { r.name = "ops/data" }), `"ops/data" can't be the name of a volume: use a name without /`},
		"name like an id":   {with(func(r *request) { r.name = strings.ToUpper(r.id) }), `can't be the name of a volume: use a name without /`},
		"parameters":        {with(func(r *request) { r.env = []string{`DHV_PARAMETERS={"class":1}`} }), `DHV_PARAMETERS is not a JSON object of strings`},
		"relative":          {with(func(r *request) { r.env = []string{`DHV_VOLUMES_DIR=volumes`} }), `DHV_VOLUMES_DIR "volumes" is not an absolute path`},
		"operation":         {with(func(r *request) { r.env = []string{`DHV_OPERATION=resize`} }), `operation "resize" is not known: use fingerprint, create or delete`},
	}
	n.unchanged(func() {
		for name, c := range wrong {
			t.Run(name, func(t *testing.T) {
				n.t = t
				n.fails("create", c.r, c.want)
			})
		}
		n.t = t
	})
	program := n.pool.Program
	n.pool.Program = "/nowhere/" + filepath.Base(program)
	n.file("")
	n.pool.Program = program
	n.refused("create", volume(), "/nowhere/")
}

func crowd(t *testing.T, n *node) {
	n.exe = testBinary(t)
	var wg sync.WaitGroup
	requests := make([]request, 8)
	got := make([]result, len(requests))
	for i := range requests {
		requests[i] = volume()
	}
	requests[7] = requests[0]
	for i, r := range requests {
		wg.Go(func() { got[i] = n.call("create", r) })
	}
	wg.Wait()
	for i, g := range got {
		must.Eq(t, "", g.Error, must.Sprintf("%d", i))
		put(t, g.Path, "a", requests[i].id)
	}
	must.Eq(t, got[0], got[7])
	all, err := n.engine("dir").List(t.Context())
	must.NoError(t, err)
	must.SliceLen(t, 7, all)
	must.SliceLen(t, 7, n.records())

	for _, r := range requests {
		wg.Go(func() { n.call("delete", r) })
	}
	wg.Wait()
	must.SliceEmpty(t, n.records())
	must.SliceLen(t, 7, n.inTrash())
	entries, err := os.ReadDir(engine.LockDir)
	must.NoError(t, err)
	for _, e := range entries {
		for _, r := range requests {
			must.NotEq(t, r.id, e.Name())
		}
	}
}

// The test runs the real binary. A fingerprint must be quick: Nomad allows it one second, even while a starting agent
// runs all plugins and restores all volumes.
func TestBinary_IsAHostVolumePlugin(t *testing.T) {
	testsupport.Long(t, "builds the plugin")
	exe := filepath.Join(t.TempDir(), "nomad-device-dataset")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", exe, "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	best := time.Hour
	for range 5 {
		cmd := exec.Command(exe, "fingerprint")
		cmd.Env = []string{"DHV_OPERATION=fingerprint"}
		start := time.Now()
		out, err := cmd.Output()
		best = min(best, time.Since(start))
		must.NoError(t, err)
		must.StrContains(t, string(out), `{"version":"`)
	}
	t.Logf("fingerprint: %v", best)
	must.Less(t, 500*time.Millisecond, best)

	n := newNode(t, zfsfusetest.New(t))
	n.exe = exe
	r := volume()
	put(t, n.create(r).Path, "a", "text")
	n.delete(r)
}
