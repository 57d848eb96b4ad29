// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package slot is the plugin's role as a device plugin: it provides scratch that is empty at the start of a task and
// freed after the task's end.
//
// The record of a reservation is its dataset, .slots/<slot>.<lease>. A slot without a dataset is free. A reservation is
// over when Nomad's API has shown its holder and later the holder's end, or when Nomad reserves the slot again. The
// dataset then moves to the trash. From there it is destroyed once the kernel no longer reports it as busy.
package slot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/fingerprint"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/holder"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// Type is the type of the devices.
const Type = "dataset"

// lookTime is the timeout of one look at a root.
const lookTime = 8 * time.Second

// datasets has the methods of engine.Engine that slots use.
type datasets interface {
	Look(ctx context.Context) (engine.Look, error)
	Lock(ctx context.Context, key string, wait time.Duration) (locked context.Context, unlock func(), err error)
	Create(ctx context.Context, name string, s engine.Spec) (path string, err error)
	Mount(ctx context.Context, name, dir string) (path string, err error)
	Tag(ctx context.Context, name string, t engine.Tags) error
	Discard(ctx context.Context, name string, keep time.Duration) error
}

// Config is the agent's block: plugin "nomad-device-dataset" { config { ... } }.
type Config struct {
	File  string          `codec:"file" default:"/etc/outrider/dataset.hcl" doc:"The operator's file with the classes, absolute. Only root may be able to change it."`
	Sweep schema.Duration `codec:"sweep" default:"30s" min:"200ms" doc:"Time between searches for scratch whose task has ended."`
	Grace schema.Duration `codec:"grace" default:"10s" max:"30s" doc:"How long a reservation waits for a slot that a previous task still uses."`

	MountsForAll bool `codec:"mounts_for_all" default:"false" doc:"Also mount slots in tasks of other drivers, such as docker. Nomad then drops the volumes of a task that has both, and the slot after restarts of the agent and the task."`

	API holder.API `codec:"api" doc:"The agent's API, which shows the allocation that has a slot."`
}

type instance struct {
	Config
	log   hclog.Logger
	trash fingerprint.Kicker                                                    // requests a look at the trash
	views fingerprint.Kicker                                                    // requests a view of the API
	gone  func(ctx context.Context, allocation, namespace string) (bool, error) // API.Gone; a test replaces it

	mu     sync.Mutex
	file   *policy.File          // the last valid file; at first, it has no class
	roots  map[string]datasets   // engines of all classes that have or had slots, by "<zfs program> <root>"
	logged map[string]string     // text of each current problem, by subject
	states map[string]leaseState // states of leases, by name of the dataset
	api    apiState
}

var (
	_ device.EventSource = (*instance)(nil)
	_ device.Releaser    = (*instance)(nil)
	_ device.Tuned       = (*instance)(nil)
)

// New implements device.Plugin.New.
func New(c Config, log hclog.Logger) (device.Instance, error) {
	return &instance{
		Config: c, log: log, trash: fingerprint.NewKicker(), views: fingerprint.NewKicker(), gone: c.API.Gone,
		file: &policy.File{}, roots: map[string]datasets{}, logged: map[string]string{}, states: map[string]leaseState{},
	}, nil
}

// Options implements device.Tuned.
func (i *instance) Options() device.Options {
	return device.Options{Period: i.Sweep.Duration(), Settle: 100 * time.Millisecond, Grace: i.Grace.Duration(),
		MountsInEnvironment: !i.MountsForAll}
}

// List implements device.Instance.
func (i *instance) List(ctx context.Context) ([]device.Group, error) {
	file := i.load()
	now := i.look(ctx)
	i.remount(ctx, now)
	var names []string
	for name, c := range file.Classes {
		if c.Slots != nil {
			names = append(names, name)
		}
	}
	groups := make([]device.Group, len(names))
	for n, name := range names {
		groups[n] = i.group(name, file.Classes[name], now)
	}
	return groups, nil
}

// load reads the operator's file and returns it. If the file is invalid or gone, it returns the last valid file.
func (i *instance) load() *policy.File {
	file, err := policy.Load(i.File)
	i.mu.Lock()
	if err == nil {
		i.file = file
	}
	file = i.file
	for name, c := range file.Classes {
		if key := file.ZFS + " " + c.Root; c.Slots != nil && i.roots[key] == nil {
			i.roots[key] = file.Engine(name)
		}
	}
	i.mu.Unlock()
	if errors.Is(err, fs.ErrNotExist) && len(file.Classes) == 0 {
		err = nil
	}
	i.say("file", "the slots stay as they were", err)
	return file
}

// class returns a class of the last valid file, and its engine, or nil if the class has no slots.
func (i *instance) class(name string) (policy.Class, datasets) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c := i.file.Classes[name]
	return c, i.roots[i.file.ZFS+" "+c.Root]
}

func classOf(id string) string { return id[:max(0, strings.LastIndex(id, "-"))] }

// group returns the devices of a class. Free slots are unhealthy while no dataset of a slot's size can be made.
func (i *instance) group(name string, c policy.Class, now look) device.Group {
	quota := c.Slots.Capacity.Bytes()
	g := device.Group{Vendor: "zfs", Type: Type, Name: name, Attributes: map[string]*structs.Attribute{
		// with a unit, because a job's "10 GiB" never equals a number without a unit
		"quota": structs.NewIntAttribute(quota>>20, structs.UnitMiB),
		"api":   structs.NewStringAttribute(i.evidence()),
	}}
	_, e := i.class(name)
	problem := now.problem(e, quota)
	for n := range c.Slots.Count {
		d := device.Device{ID: fmt.Sprintf("%s-%02d", name, n)}
		if !now.held(d.ID) {
			d.Problem = problem
		}
		g.Devices = append(g.Devices, d)
	}
	return g
}

// problem returns why no slot with this quota can be made, or "".
func (l look) problem(e datasets, quota int64) string {
	space := l.found[e].Space
	switch err := cmp.Or(l.failed[e], l.found[e].Problem); {
	case err != nil:
		return err.Error()
	case space.Free < quota:
		return fmt.Sprintf("the file system is full: a slot needs %d MiB, and %d MiB are free", quota>>20, space.Free>>20)
	}
	return ""
}

// say logs err if it is new for the subject in about. If err is nil, it logs that the subject's problem is over.
func (i *instance) say(about, consequence string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	was := i.logged[about]
	if err == nil {
		delete(i.logged, about)
		if was != "" {
			i.log.Info("recovered: " + was)
		}
		return
	}
	i.logged[about] = err.Error()
	if was != err.Error() {
		i.log.Warn(consequence + ": " + err.Error())
	}
}

// look is the state of some roots at one time.
type look struct {
	at     time.Time
	leases []lease // sorted by slot
	found  map[datasets]engine.Look
	failed map[datasets]error
}

// lease is one reservation, recorded as a dataset.
type lease struct {
	engine.Dataset
	engine datasets
}

// is reports whether the dataset is a lease, and not in the trash.
func (l *lease) is() bool {
	return l.Tags[engine.Kind] == "slot" && l.Name == engine.SlotName(l.Tags[engine.ID], l.Tags[engine.Lease])
}

func (l *lease) slot() string { return l.Tags[engine.ID] }

// holder describes the lease in errors and log lines.
func (l *lease) holder() string {
	text := "reservation " + l.Tags[engine.Lease]
	if allocation, task, known := strings.Cut(l.Tags[engine.Holder], "/"); known {
		text += " of allocation " + allocation + ", task " + task
	}
	return text
}

// look lists the leases below some roots, or below all roots if none are given. A root that can't be listed does not
// hide the leases below other roots.
func (i *instance) look(ctx context.Context, roots ...datasets) look {
	if len(roots) == 0 {
		i.mu.Lock()
		roots = slices.Collect(maps.Values(i.roots))
		i.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	now := look{at: time.Now(), found: map[datasets]engine.Look{}, failed: map[datasets]error{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, e := range roots {
		all.Go(func() {
			found, err := e.Look(ctx)
			mu.Lock()
			defer mu.Unlock()
			now.found[e] = found
			if err != nil {
				now.failed[e] = err
			}
			for _, d := range found.Datasets {
				if l := (lease{d, e}); l.is() {
					now.leases = append(now.leases, l)
				}
			}
		})
	}
	all.Wait()
	slices.SortFunc(now.leases, func(a, b lease) int { return strings.Compare(a.Name, b.Name) })
	i.mu.Lock()
	defer i.mu.Unlock()
	i.remember(now)
	return now
}

// rootsOf returns the roots that have leases of these slots, and the roots for new leases of them. The two differ after
// a change of the operator's file.
func (i *instance) rootsOf(ids []string) (roots []datasets) {
	for _, id := range ids {
		_, e := i.class(classOf(id))
		if e != nil && !slices.Contains(roots, e) {
			roots = append(roots, e)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for name, m := range i.states {
		has := func(id string) bool { return strings.HasPrefix(name, engine.SlotName(id, "")) }
		if slices.ContainsFunc(ids, has) && !slices.Contains(roots, m.engine) {
			roots = append(roots, m.engine)
		}
	}
	return roots
}

func (l look) held(slot string) bool {
	return slices.ContainsFunc(l.leases, func(l lease) bool { return l.slot() == slot })
}
