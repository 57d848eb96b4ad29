// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// zfs is the backend for OpenZFS and zfs-fuse, by the zfs program.
//
// A dataset is mounted by Mount alone: canmount=noauto keeps everything else from it, also
// "zfs mount -a" at boot, so one that is in the trash stays unmounted. The datasets above
// (<root>/<namespace> and so on) are never mounted and have no mount point to inherit.
//
// The tags are one user property, set with the creation. It counts only if it is the
// dataset's own: what is made below a dataset of ours inherits it.
type zfs struct {
	program program
	root    string // dataset
	open    bool   // OpenZFS, not zfs-fuse
}

// tagProperty has the tags, in JSON.
const tagProperty = "outrider:dataset"

// NewZFS returns the datasets below a dataset such as "tank/nomad". The program is zfs, by
// its absolute path.
func NewZFS(path, root string) (Backend, error) {
	for part := range strings.SplitSeq(root, "/") {
		if !component.MatchString(part) {
			return nil, fmt.Errorf("%q can't be the name of a ZFS dataset: write it like tank/nomad", root)
		}
	}
	_, err := os.Stat("/sys/module/zfs")
	return &zfs{program: program(path), root: root, open: err == nil}, nil
}

// full returns the name that zfs has for a dataset.
func (z *zfs) full(name string) (string, error) {
	if err := checkName(name); err != nil || strings.Contains(name, "@") {
		return "", fmt.Errorf("%q can't be the name of a dataset", name)
	}
	full := z.root + "/" + name
	if len(full) > 200 { // ZFS has 255 for it with a snapshot's name
		return "", fmt.Errorf("%q can't be the name of a dataset: with %s before it, it is too long", name, z.root)
	}
	return full, nil
}

// Check is part of Backend.
func (z *zfs) Check(ctx context.Context) error {
	root, err := z.properties(ctx, 0, z.root)
	if err != nil {
		return z.noRoot(ctx, err)
	}
	if kind := root[0].value("type"); kind != "filesystem" {
		return fmt.Errorf("%s is a %s, not a file system: %w", z.root, kind, ErrUnavailable)
	}
	if root[0].value("readonly") == "on" || z.readOnlyPool(ctx) {
		return fmt.Errorf("%s is read-only: %w", z.root, ErrUnavailable)
	}
	return nil
}

// noRoot is the error of a command that did not find the root, with what is to be done.
func (z *zfs) noRoot(ctx context.Context, err error) error {
	if errors.Is(err, ErrUnavailable) { // zfs itself
		return err
	}
	pool, _, _ := strings.Cut(z.root, "/")
	if pool != z.root && z.there(ctx, pool) {
		return fmt.Errorf("the dataset %s is not there (create it with: zfs create -o mountpoint=none %s): %w",
			z.root, z.root, unavailable(err))
	}
	return fmt.Errorf("the pool %s is not there (import it with: zpool import %s): %w", pool, pool, unavailable(err))
}

// Space is part of Backend.
func (z *zfs) Space(ctx context.Context) (Space, error) {
	root, err := z.properties(ctx, 0, z.root)
	if err != nil {
		return Space{}, z.noRoot(ctx, err)
	}
	free := root[0].bytes("available")
	return Space{Size: root[0].bytes("used") + free, Free: free}, nil
}

// List is part of Backend.
func (z *zfs) List(ctx context.Context) ([]Dataset, error) {
	found, err := z.properties(ctx, 2, z.root)
	if err != nil {
		return nil, z.noRoot(ctx, err)
	}
	mounted, err := ownMounts()
	if err != nil {
		return nil, err
	}
	var list []Dataset
	for _, p := range found {
		if name, below := strings.CutPrefix(p.full, z.root+"/"); below && p.ours(name) {
			list = append(list, p.dataset(name, mounted))
		}
	}
	slices.SortFunc(list, func(a, b Dataset) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Get is part of Backend.
func (z *zfs) Get(ctx context.Context, name string) (Dataset, error) {
	p, err := z.get(ctx, name)
	if err != nil {
		return Dataset{}, err
	}
	mounted, err := ownMounts()
	if err != nil {
		return Dataset{}, err
	}
	return p.dataset(name, mounted), nil
}

// get returns the properties of a dataset of ours.
func (z *zfs) get(ctx context.Context, name string) (properties, error) {
	full, err := z.full(name)
	if err != nil {
		return properties{}, err
	}
	found, err := z.properties(ctx, 0, full)
	if err != nil {
		missing := strings.Contains(err.Error(), "does not exist") // a command that fails otherwise says nothing
		switch {
		case !missing:
			return properties{}, unavailable(err)
		case z.there(ctx, z.root):
			return properties{}, fmt.Errorf("dataset %s: %w", full, ErrNotFound)
		}
		return properties{}, z.noRoot(ctx, err)
	}
	if !found[0].ours(name) {
		return properties{}, fmt.Errorf("dataset %s: %w", full, ErrForeign)
	}
	return found[0], nil
}

// there reports whether zfs has a dataset or snapshot of that name.
func (z *zfs) there(ctx context.Context, full string) bool {
	_, err := z.run(ctx, "list", "-H", "-t", "all", "-o", "name", full)
	return err == nil
}

// Create is part of Backend.
func (z *zfs) Create(ctx context.Context, name string, s Spec) (string, error) {
	return z.make(ctx, name, s, func(full string, options []string) []string {
		return append(append([]string{"create"}, options...), full)
	})
}

// Clone is part of Backend.
func (z *zfs) Clone(ctx context.Context, name, snapshot, to string, s Spec) (string, error) {
	from, err := z.snapshot(ctx, name, snapshot)
	if err != nil {
		return "", err
	}
	return z.make(ctx, to, s, func(full string, options []string) []string {
		return append(append([]string{"clone"}, options...), from, full)
	})
}

// make runs a command that makes a dataset, with all its properties at once, and mounts it.
func (z *zfs) make(ctx context.Context, name string, s Spec, command func(string, []string) []string) (path string,
	err error) {
	full, err := z.full(name)
	if err != nil {
		return "", err
	}
	dir := ""
	if s.Dir != "" {
		if dir, err = mountDir(s.Dir); err != nil {
			return "", err
		}
	}
	options, err := s.options(dir)
	if err != nil {
		return "", err
	}
	if dir != "" { // now, since zfs-fuse mounts a clone at once
		if err := makeMountDir(dir); err != nil {
			return "", cmp.Or(z.taken(ctx, name), err)
		}
		defer func() {
			if err != nil {
				err = also(err, removeMountDir(dir))
			}
		}()
	}
	if _, err := z.run(ctx, command(full, options)...); err != nil {
		if taken := z.taken(ctx, name); taken != nil {
			return "", taken
		}
		if parentErr := z.makeParent(ctx, full); parentErr != nil {
			return "", also(ours(err), parentErr)
		}
		if _, err := z.run(ctx, command(full, options)...); err != nil {
			return "", ours(err)
		}
	}
	if dir == "" {
		return "", nil
	}
	if err := z.mount(ctx, full, dir); err != nil {
		return "", also(err, z.whileBusy(context.WithoutCancel(ctx), "destroy", full))
	}
	return s.Dir, nil
}

// taken returns why a dataset of this name can't be made: ErrExists, ErrForeign. If there is
// none it returns nil.
func (z *zfs) taken(ctx context.Context, name string) error {
	p, err := z.get(ctx, name)
	if err == nil {
		return fmt.Errorf("dataset %s: %w", p.full, ErrExists)
	}
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// makeParent makes the dataset above one, if it is not there.
func (z *zfs) makeParent(ctx context.Context, full string) error {
	parent := full[:strings.LastIndex(full, "/")]
	if parent == z.root || z.there(ctx, parent) {
		return nil
	}
	_, err := z.run(ctx, "create", "-o", "mountpoint=none", "-o", "canmount=off",
		"-o", "devices=off", "-o", "setuid=off", parent) // a task must not leave what gives others its rights
	if err != nil && !z.there(ctx, parent) { // another process may have been faster
		return ours(err)
	}
	return nil
}

// Reserved are the properties of ZFS that are the engine's, or would lead out of the root. No Spec
// may have them.
var Reserved = []string{"canmount", "mountpoint", "quota", "refquota", "sharenfs", "sharesmb", "zoned", "jailed"}

// options for the creation of a dataset.
func (s Spec) options(dir string) ([]string, error) {
	set := map[string]string{"canmount": "noauto", "mountpoint": "none"}
	if dir != "" {
		set["mountpoint"] = dir
	}
	maps.Copy(set, s.limits())
	for property, value := range s.Properties {
		if slices.Contains(Reserved, property) || strings.ContainsAny(property, ":=@ ") {
			return nil, fmt.Errorf("the property %q of a dataset is not for you to set", property)
		}
		set[property] = value
	}
	tags, err := s.Tags.encode()
	if err != nil {
		return nil, err
	}
	set[tagProperty] = tags
	var options []string
	for _, property := range slices.Sorted(maps.Keys(set)) {
		options = append(options, "-o", property+"="+set[property])
	}
	return options, nil
}

// limits as properties. A dataset has room for the snapshots beside its data.
func (l Limits) limits() map[string]string {
	set := map[string]string{"refquota": "none", "quota": "none"}
	if l.Data > 0 {
		set["refquota"] = strconv.FormatInt(l.Data, 10)
	}
	if l.Data > 0 && l.Snapshots > 0 {
		set["quota"] = strconv.FormatInt(l.Data+l.Snapshots, 10)
	}
	return set
}

// encode returns tags as a property's value.
func (t Tags) encode() (string, error) {
	text, err := json.Marshal(t.with(nil))
	return string(text), err
}

// Tag is part of Backend.
func (z *zfs) Tag(ctx context.Context, name string, t Tags) error {
	p, err := z.get(ctx, name)
	if err != nil {
		return err
	}
	text, err := p.tags().with(t).encode()
	if err != nil {
		return err
	}
	if _, err := z.run(ctx, "set", tagProperty+"="+text, p.full); err != nil {
		return ours(err)
	}
	return nil
}

// Resize is part of Backend.
func (z *zfs) Resize(ctx context.Context, name string, l Limits) error {
	p, err := z.get(ctx, name)
	if err != nil {
		return err
	}
	d := p.dataset(name, nil)
	if l.Data > 0 && (l.Data < d.Usage.Data || l.Snapshots > 0 && l.Data+l.Snapshots < p.bytes("used")) {
		return fmt.Errorf("dataset %s holds %d bytes, and %d with snapshots: %w", p.full, d.Usage.Data, p.bytes("used"),
			ErrTooSmall)
	}
	set := l.limits()
	for _, property := range []string{"refquota", "quota"} { // zfs-fuse sets one property a command
		if _, err := z.run(ctx, "set", property+"="+set[property], p.full); err != nil {
			_, undoErr := z.run(ctx, "set", "refquota="+d.Limits.limits()["refquota"], p.full)
			return also(ours(err), undoErr)
		}
	}
	return nil
}

// Destroy is part of Backend.
func (z *zfs) Destroy(ctx context.Context, name string) error {
	p, err := z.get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := z.dependents(ctx, p.full); err != nil {
		return err
	}
	remount, err := z.unmount(ctx, p)
	if err != nil {
		return err
	}
	// with -r, its snapshots; there is nothing else below it
	if err := z.whileBusy(ctx, "destroy", "-r", p.full); err != nil {
		return also(ours(err), remount())
	}
	return removeMountDir(p.value("mountpoint"))
}

// dependents returns an error if something other than its snapshots needs a dataset or
// snapshot: clones, or datasets that somebody made below it.
func (z *zfs) dependents(ctx context.Context, full string) error {
	text, err := z.run(ctx, "list", "-H", "-r", "-t", "filesystem,volume", "-o", "name,origin", z.root)
	if err != nil {
		return unavailable(err)
	}
	for line := range strings.Lines(text) {
		name, origin, _ := strings.Cut(strings.TrimSpace(line), "\t")
		switch {
		case strings.HasPrefix(name, full+"/"):
			return fmt.Errorf("dataset %s has another below it, %s: %w", full, name, ErrForeign)
		case strings.HasPrefix(origin, full+"@") || origin == full:
			return fmt.Errorf("%s is the origin of %s: %w", full, name, ErrHasClones)
		}
	}
	return nil
}

// Rename is part of Backend.
func (z *zfs) Rename(ctx context.Context, from, to string) error {
	target, err := z.full(to)
	if err != nil {
		return err
	}
	p, err := z.get(ctx, from)
	if err != nil {
		return err
	}
	remount, err := z.unmount(ctx, p)
	if err != nil {
		return err
	}
	rename := func() error { return z.whileBusy(ctx, "rename", p.full, target) }
	if err = rename(); err != nil && !errors.Is(err, ErrInUse) {
		if z.there(ctx, target) {
			err = fmt.Errorf("dataset %s: %w", target, ErrExists)
		} else if err = z.makeParent(ctx, target); err == nil {
			err = rename()
		}
	}
	if err != nil {
		return also(ours(err), remount())
	}
	return removeMountDir(p.value("mountpoint"))
}
