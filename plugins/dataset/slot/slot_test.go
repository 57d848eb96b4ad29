// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package slot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/device"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/holder"
)

// memory implements datasets in memory, with a directory for each dataset.
type memory struct {
	dir string

	mu       sync.Mutex
	datasets map[string]engine.Dataset
	inUse    string // name of a busy dataset
	broken   error
	hidden   error // the error of Look
	free     int64
}

func (m *memory) Look(context.Context) (engine.Look, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := engine.Look{Space: engine.Space{Size: 1 << 40, Free: m.free}}
	if err := cmp.Or(m.broken, m.hidden); err != nil {
		return engine.Look{}, err
	}
	for _, d := range m.datasets {
		d.Tags = maps.Clone(d.Tags)
		l.Datasets = append(l.Datasets, d)
	}
	return l, nil
}

func (m *memory) Create(_ context.Context, name string, s engine.Spec) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	path := filepath.Join(m.dir, filepath.Base(name))
	m.datasets[name] = engine.Dataset{Name: name, Path: path, Created: time.Now(), Tags: s.Tags, Limits: s.Limits}
	return path, errors.Join(m.broken, os.Mkdir(path, 0o755))
}

func (m *memory) Tag(_ context.Context, name string, t engine.Tags) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, there := m.datasets[name]
	if !there {
		return engine.ErrNotFound
	}
	maps.Copy(d.Tags, t)
	return nil
}

func (m *memory) Lock(ctx context.Context, _ string, _ time.Duration) (context.Context, func(), error) {
	return ctx, func() {}, nil
}

func (m *memory) Mount(context.Context, string, string) (string, error) {
	return "", errors.New("it was unmounted")
}

func (m *memory) Discard(_ context.Context, name string, _ time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, there := m.datasets[name]
	switch {
	case !there:
		return engine.ErrNotFound
	case m.inUse == name:
		return fmt.Errorf("dataset %s can't be unmounted, %w", name, engine.ErrInUse)
	}
	delete(m.datasets, name)
	d.Name = ".trash/" + filepath.Base(name)
	m.datasets[d.Name] = d
	return nil
}

// folders returns the folder of each dataset, such as ".trash".
func (m *memory) folders() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.datasets {
		name, _, _ = strings.Cut(name, "/")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (m *memory) set(change func()) { m.mu.Lock(); defer m.mu.Unlock(); change() }

const fast = `class "fast" {
  root = "tank/fast"
  slots {
    count    = 2
    capacity = "64MiB"
  }
}
`

// bench is an instance with one class, whose datasets are in memory.
type bench struct {
	*instance
	t      *testing.T
	fs     *memory
	log    strings.Builder
	kicked int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must.NoError(t, err)
	b := &bench{t: t, fs: &memory{dir: dir, datasets: map[string]engine.Dataset{}, free: 1 << 30}}
	log := hclog.New(&hclog.LoggerOptions{Output: &b.log, DisableTime: true})
	made, err := New(Config{File: filepath.Join(dir, "dataset.hcl"), Sweep: "1h", API: holder.API{Enabled: true}}, log)
	must.NoError(t, err)
	b.instance = made.(*instance)
	b.api.kick = func() { b.kicked++ }
	b.roots["/usr/sbin/zfs tank/fast"] = b.fs
	b.write(fast)
	return b
}

func (b *bench) write(file string) { must.NoError(b.t, os.WriteFile(b.File, []byte(file), 0o600)) }

// list returns the result of List as text, with one line for each group.
func (b *bench) list() string {
	b.t.Helper()
	groups, err := b.List(b.t.Context())
	must.NoError(b.t, err)
	var lines []string
	for _, g := range groups {
		line := g.Vendor + "/" + g.Type + "/" + g.Name + ":"
		for _, d := range g.Devices {
			line += " " + d.ID
			if d.Problem != "" {
				line += "(" + d.Problem + ")"
			}
		}
		for _, name := range slices.Sorted(maps.Keys(g.Attributes)) {
			line += " " + name + "=" + g.Attributes[name].GoString()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (b *bench) leases() []device.Lease {
	b.t.Helper()
	all, err := b.Leases(b.t.Context())
	must.NoError(b.t, err)
	return all
}

// only returns the lease and its tags. It fails the test unless there is exactly one lease.
func (b *bench) only() (device.Lease, engine.Tags) {
	b.t.Helper()
	all := b.leases()
	must.Len(b.t, 1, all)
	return all[0], b.look(b.t.Context()).leases[0].Tags
}

func TestList_HasTheClassesWithSlots(t *testing.T) {
	b := newBench(t)
	b.write(fast + `class "volumes" {
  root = "tank/volumes"
}
`)
	must.Eq(t, `zfs/dataset/fast: fast-00 fast-01 api=none quota=64MiB`, b.list())
}

func TestList_FreeSlotsAreUnhealthyWithoutSpace(t *testing.T) {
	b := newBench(t)
	b.list()
	_, err := b.Reserve(t.Context(), []string{"fast-01"})
	must.NoError(t, err)
	b.fs.set(func() { b.fs.free = 10 << 20 })
	full := "the file system is full: a slot needs 64 MiB, and 10 MiB are free"
	must.StrContains(t, b.list(), "fast-00("+full+") fast-01 ")
	b.fs.set(func() { b.fs.free, b.fs.broken = 1<<30, errors.New("the pool is not imported") })
	must.StrContains(t, b.list(), "fast-00(the pool is not imported)")
	b.fs.set(func() { b.fs.broken = nil })
	must.StrContains(t, b.list(), ": fast-00 fast-01 ")
}

func TestList_IsEmptyWithoutAFile(t *testing.T) {
	b := newBench(t)
	must.NoError(t, os.Remove(b.File))
	for range 2 {
		must.Eq(t, "", b.list())
	}
	must.Len(t, 0, b.leases())
	must.Eq(t, "", b.log.String())
	b.write(fast)
	before := b.list()
	must.StrHasPrefix(t, "zfs/dataset/fast: ", before)
	must.NoError(t, os.Remove(b.File)) // logs an error, because a file was in use before
	must.Eq(t, before, b.list())
	must.StrContains(t, b.log.String(), "the slots stay as they were")
}

func TestList_BadFileChangesNothing(t *testing.T) {
	b := newBench(t)
	b.write("class \"fast\" {")
	must.Eq(t, "", b.list())
	b.write(fast)
	before := b.list()
	for _, text := range []string{"class \"fast\" {", `class "fast" { root = "/x" }`} {
		b.write(text)
		must.Eq(t, before, b.list())
		must.Eq(t, before, b.list())
	}
	_, err := b.Reserve(t.Context(), []string{"fast-00"})
	must.NoError(t, err)
	must.Eq(t, 3, strings.Count(b.log.String(), "the slots stay as they were: the operator's file"), must.Sprint(&b.log))
	b.write(strings.Replace(fast, "fast", "slow", 1))
	must.StrHasPrefix(t, "zfs/dataset/slow: slow-00 slow-01 ", b.list())
	must.StrContains(t, b.log.String(), "recovered: the operator's file")
	must.Len(t, 1, b.leases(), must.Sprint("the lease of the removed class")) // both classes have the same root
}

func TestReserve_SetsVariablesAndMounts(t *testing.T) {
	b := newBench(t)
	b.write(strings.ReplaceAll(fast, `"fast"`, `"very-fast"`))
	b.list()
	r, err := b.Reserve(t.Context(), []string{"very-fast-00", "very-fast-01"})
	must.NoError(t, err)
	must.Eq(t, map[string]string{
		"DATASET_VERY_FAST": "/scratch", "DATASET_VERY_FAST_ID": "very-fast-00", "DATASET_VERY_FAST_QUOTA": "67108864",
		"DATASET_VERY_FAST_2": "/scratch-2", "DATASET_VERY_FAST_2_ID": "very-fast-01",
		"DATASET_VERY_FAST_2_QUOTA": "67108864",
	}, r.Envs)
	must.Eq(t, "/scratch-2", r.Mounts[1].TaskPath)
	info, err := os.Stat(r.Mounts[1].HostPath)
	must.NoError(t, err)
	must.Eq(t, os.ModeDir|os.ModeSticky|0o777, info.Mode())
	must.True(t, b.Options().MountsInEnvironment)
	_, err = b.Reserve(t.Context(), []string{"slow-00"})
	must.ErrorContains(t, err, `slot "slow-00" is no longer in the operator's file `+b.File)
}

// A slot whose lease can't be listed, as on a slow pool, is not given to a second task.
func TestReserve_RefusesASlotWhoseLeaseCannotBeListed(t *testing.T) {
	b := newBench(t)
	b.list()
	_, err := b.Reserve(t.Context(), []string{"fast-00"})
	must.NoError(t, err)
	b.fs.set(func() { b.fs.hidden = errors.New("the pool hangs") })
	must.SliceEmpty(t, b.leases())
	_, err = b.Reserve(t.Context(), []string{"fast-00"})
	must.ErrorContains(t, err, `failed to make slot "fast-00": failed to check whether a task has it: the pool hangs`)
	b.fs.set(func() { b.fs.hidden = nil }) // the pool recovers after the look and before the reservation
	_, err = b.Reserve(t.Context(), []string{"fast-00"})
	must.ErrorContains(t, err, `failed to make slot "fast-00": it is held by reservation `)
	must.Len(t, 1, b.leases())
}

func TestRelease_RenamesUnusedDatasets(t *testing.T) {
	b := newBench(t)
	b.list()
	_, err := b.Reserve(t.Context(), []string{"fast-00"})
	must.NoError(t, err)
	lease, _ := b.only()
	lease.Holder = "somebody" // Release ignores the holder
	b.fs.set(func() { b.fs.inUse = lease.Key })
	err = b.Release(t.Context(), lease)
	must.ErrorIs(t, err, device.ErrInUse)
	must.ErrorContains(t, err, "can't be unmounted")
	must.Len(t, 1, b.leases())

	// the lease still exists after a look that failed
	b.fs.set(func() { b.fs.inUse, b.fs.broken = "", errors.New("the pool is suspended") })
	must.SliceEmpty(t, b.leases())
	b.fs.set(func() { b.fs.broken = nil })
	must.NoError(t, b.Release(t.Context(), lease))
	must.SliceEmpty(t, b.leases())
	must.Eq(t, []string{".trash"}, b.fs.folders())
	must.NoError(t, b.Release(t.Context(), lease), must.Sprint("once more"))
}

const (
	nodeID = "11111111-1111-1111-1111-111111111111"
	alloc  = "22222222-2222-2222-2222-222222222222"
	former = "33333333-3333-3333-3333-333333333333"
)

var (
	runs    = holder.Allocation{Namespace: "prod", Wanted: true, Devices: map[string]string{"fast-00": "web"}}
	stopped = holder.Allocation{Namespace: "prod", Devices: runs.Devices}
	over    = holder.Allocation{Namespace: "prod", Wanted: true, Ended: true, Devices: runs.Devices}
	other   = holder.Allocation{Namespace: "prod", Wanted: true, Devices: map[string]string{"fast-01": "web"}}
)

// view returns a view that began now and has one allocation.
func view(a holder.Allocation) *holder.View {
	return &holder.View{Node: nodeID, Began: time.Now(), Allocations: map[string]holder.Allocation{alloc: a}}
}

// The views of each row are evaluated one after the other. A missing allocation does not prove that the lease is over.
func TestSeen_EndsALeaseOnlyByEvidence(t *testing.T) {
	type views []map[string]holder.Allocation
	held, none := alloc+"/web", ""
	for _, c := range []struct {
		name     string
		views    views
		complete bool
		gone     string // the allocation that Nomad reports as missing
		late     bool   // the views began before the reservation
		age      time.Duration
		node     string

		holder, api string
		over        bool
	}{
		{name: "runs", views: views{{alloc: runs}}, holder: held, api: "ok"},
		{name: "ran and ended", views: views{{alloc: runs}, {alloc: over}}, holder: held, api: "ok", over: true},
		{name: "ran and is being stopped", views: views{{alloc: runs}, {alloc: stopped}}, holder: held, api: "ok"},
		{name: "ran and is not in the list", views: views{{alloc: runs}, {}}, holder: held, api: "none"},
		{name: "ran and was purged", views: views{{alloc: runs}, {}}, gone: alloc, holder: held, api: "none", over: true},
		{name: "another was purged", views: views{{alloc: runs}, {}}, gone: former, holder: held, api: "none"},
		{name: "ended on another node", views: views{{alloc: runs}, {alloc: over}}, node: former, holder: held, api: "ok"},

		{name: "an empty list", views: views{{}, {}}, holder: none, api: "none", age: time.Hour},
		{name: "a list without the allocation", views: views{{former: other}}, holder: none, api: "none", age: time.Hour},
		{name: "only a previous holder", views: views{{former: over}}, holder: none, api: "ok", age: time.Hour},
		{name: "a previous holder that is lost and runs", views: views{{former: stopped}, {former: over}},
			holder: none, api: "ok"},
		{name: "both run", views: views{{former: runs, alloc: runs}, {former: over, alloc: over}}, holder: none, api: "ok"},
		{name: "a previous holder in an old list", views: views{{former: runs}, {former: over}}, late: true,
			holder: none, api: "ok"},

		{name: "nothing hidden: ended unseen", views: views{{former: over, alloc: over}}, complete: true,
			holder: none, api: "ok", over: true},
		{name: "nothing hidden, in an old list", views: views{{former: over}}, complete: true, late: true,
			holder: none, api: "ok", age: time.Hour},
		{name: "nothing hidden: being stopped", views: views{{alloc: stopped}}, complete: true, holder: none, api: "ok"},
		{name: "nothing hidden: it may still appear", views: views{{}}, complete: true, holder: none, api: "ok",
			age: 9 * time.Minute},
		{name: "nothing hidden: it never appeared", views: views{{}}, complete: true, holder: none, api: "ok",
			age: 11 * time.Minute, over: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			b.list()
			early := time.Now()
			_, err := b.Reserve(t.Context(), []string{"fast-00"})
			must.NoError(t, err)
			b.fs.set(func() {
				for name, d := range b.fs.datasets {
					d.Created = d.Created.Add(-c.age)
					b.fs.datasets[name] = d
				}
			})
			b.gone = func(_ context.Context, id, namespace string) (bool, error) {
				must.Eq(t, "prod", namespace)
				return id == c.gone, nil
			}
			for n, shown := range c.views {
				v := &holder.View{Node: nodeID, Began: time.Now(), Complete: c.complete, Allocations: shown}
				if c.late {
					v.Began = early
				}
				if n == len(c.views)-1 && c.node != "" {
					v.Node = c.node
				}
				b.seen(t.Context(), v)
			}
			lease, tags := b.only()
			must.Eq(t, c.holder, tags[engine.Holder])
			must.Eq(t, c.over, lease.Ended)
			must.Eq(t, c.api, b.evidence())
			must.True(t, b.kicked > 0 || !c.over && c.api == "none", must.Sprint("nothing asks for a sweep"))
			if c.holder != "" {
				must.StrHasSuffix(t, " of allocation "+alloc+", task web", lease.Holder)
			}
		})
	}
}

// After a restart, the plugin knows the holder only from the tags of the dataset.
func TestSeen_NextProcessKnowsTheHolder(t *testing.T) {
	b := newBench(t)
	b.list()
	_, err := b.Reserve(t.Context(), []string{"fast-00"})
	must.NoError(t, err)
	b.seen(t.Context(), view(runs))
	next := newBench(t)
	next.fs.datasets = b.fs.datasets
	next.leases()
	next.seen(t.Context(), view(over))
	lease, _ := next.only()
	must.True(t, lease.Ended)
}

func TestJudge_EndsNoLeaseIfNomadDoesNotAnswer(t *testing.T) {
	b := newBench(t)
	b.list()
	_, err := b.Reserve(t.Context(), []string{"fast-00"})
	must.NoError(t, err)
	b.seen(t.Context(), view(runs))
	must.StrContains(t, b.list(), "api=ok")
	for range 3 {
		b.judge(false, errors.New("there is no answer"), false)
	}
	must.StrContains(t, b.list(), "api=none")
	lease, _ := b.only()
	must.False(t, lease.Ended)
	must.Eq(t, 1, strings.Count(b.log.String(), "there is no answer"))
	b.gone = func(context.Context, string, string) (bool, error) { return false, errors.New("it hangs") }
	b.seen(t.Context(), &holder.View{Node: nodeID, Began: time.Now(), Complete: true})
	lease, _ = b.only()
	must.False(t, lease.Ended)
	must.StrContains(t, b.list(), "api=none")
}

func TestLeases_DoNotNeedPoolsOfOtherSlots(t *testing.T) {
	b := newBench(t)
	b.list()
	b.roots["/usr/sbin/zfs slow/fast"] = &memory{broken: errors.New("it does not answer")}
	_, err := b.Reserve(t.Context(), []string{"fast-00"})
	must.NoError(t, err)
	must.Len(t, 1, b.leases())
	found, err := b.Leases(t.Context(), "fast-00")
	must.NoError(t, err)
	must.Len(t, 1, found)
	must.NoError(t, b.Release(t.Context(), found[0]))

	b.fs.set(func() { b.fs.hidden = errors.New("nor does this") })
	_, err = b.Leases(t.Context(), "fast-00")
	must.ErrorContains(t, err, "nor does this")
}

// The operator's file names a new zfs program, and the previous one fails: leases are released with the new one.
func TestLeases_AreReleasedByTheEngineThatListsThem(t *testing.T) {
	b := newBench(t)
	b.list()
	_, err := b.Reserve(t.Context(), []string{"fast-00"})
	must.NoError(t, err)
	b.roots["/new/zfs tank/fast"] = &memory{dir: b.fs.dir, datasets: b.fs.datasets}
	b.write("zfs = \"/new/zfs\"\n" + fast)
	b.fs.set(func() { b.fs.broken = errors.New("it is gone") })
	must.Len(t, 1, b.leases())
	found, err := b.Leases(t.Context(), "fast-00")
	must.NoError(t, err)
	must.Len(t, 1, found)
	must.NoError(t, b.Release(t.Context(), found[0]))
	must.SliceEmpty(t, b.leases())
}
