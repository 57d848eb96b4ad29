// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// tagProperty is the user property of ZFS that contains the tags, as JSON.
const tagProperty = "outrider:dataset"

// Check returns an error if datasets can't be made or used now, for example because the pool is not imported,
// the zfs program is missing, or the root is read-only.
func (e *Engine) Check(ctx context.Context) error {
	root, err := e.properties(ctx, 0, e.root)
	if err != nil {
		return e.noRoot(ctx, err)
	}
	pool := poolOf(e.root)
	zpool := program{filepath.Join(filepath.Dir(e.program.path), "zpool"), e.program.hung}
	text, err := zpool.run(ctx, "get", "-H", "-o", "value", "readonly", pool)
	if err == nil && strings.TrimSpace(text) == "on" {
		return fmt.Errorf("the pool %s is %w: it was imported read-only", pool, ErrUnavailable)
	}
	return e.usable(root[0])
}

// usable returns an error if datasets can't be made or used below an existing root.
func (e *Engine) usable(root properties) error {
	if kind := root.value("type"); kind != "filesystem" {
		return fmt.Errorf("the root %s is %w: it is a ZFS %s, not a file system", e.root, ErrUnavailable, kind)
	}
	if root.value("readonly") == "on" {
		return fmt.Errorf("the root %s is %w: it is read-only", e.root, ErrUnavailable)
	}
	if root.value("keystatus") == "unavailable" {
		return fmt.Errorf("the root %s is %w: load its key (zfs load-key %s)", e.root, ErrUnavailable,
			root.value("encryptionroot"))
	}
	return nil
}

// noRoot adds the cause and the remedy to the error of a command that failed for the root.
func (e *Engine) noRoot(ctx context.Context, err error) error {
	if errors.Is(err, ErrUnavailable) || ctx.Err() != nil { // the zfs program itself failed, or took too long
		return unavailable(err)
	}
	pool := poolOf(e.root)
	if pool != e.root && e.there(ctx, pool) {
		return fmt.Errorf("the dataset %s is missing (create it with: zfs create -o mountpoint=none %s): %w",
			e.root, e.root, unavailable(err))
	}
	return fmt.Errorf("the pool %s is not imported (import it with: zpool import %s): %w", pool, pool, unavailable(err))
}

// Look returns the state of the root with one call of zfs.
func (e *Engine) Look(ctx context.Context) (Look, error) {
	found, err := e.properties(ctx, 2, e.root)
	if err != nil {
		return Look{}, e.noRoot(ctx, err)
	}
	mounted, err := ownMounts()
	if err != nil {
		return Look{}, err
	}
	root := found[0]
	free := root.bytes("available")
	l := Look{Space: Space{Size: root.bytes("used") + free, Free: free}, Problem: e.usable(root)}
	for _, p := range found {
		name, below := strings.CutPrefix(p.full, e.root+"/")
		if _, err := e.full(name); err == nil && below && p.ours() {
			l.Datasets = append(l.Datasets, p.dataset(name, mounted))
		}
	}
	slices.SortFunc(l.Datasets, func(a, b Dataset) int { return strings.Compare(a.Name, b.Name) })
	return l, nil
}

// List returns every dataset below the root that this package made, in order of name.
func (e *Engine) List(ctx context.Context) ([]Dataset, error) {
	l, err := e.Look(ctx)
	return l.Datasets, err
}

// Get returns one dataset, or ErrNotFound, or ErrForeign if this package did not make it.
func (e *Engine) Get(ctx context.Context, name string) (Dataset, error) {
	p, err := e.get(ctx, name)
	if err != nil {
		return Dataset{}, err
	}
	mounted, err := ownMounts()
	if err != nil {
		return Dataset{}, err
	}
	return p.dataset(name, mounted), nil
}

// get returns the properties of a dataset that this package made.
func (e *Engine) get(ctx context.Context, name string) (properties, error) {
	full, err := e.full(name)
	if err != nil {
		return properties{}, err
	}
	found, err := e.properties(ctx, 0, full)
	if err != nil {
		return properties{}, e.missing(ctx, full, err)
	}
	if !found[0].ours() {
		return properties{}, fmt.Errorf("dataset %s was %w", full, ErrForeign)
	}
	return found[0], nil
}

// missing returns ErrNotFound if a command failed only because the dataset does not exist, and otherwise
// ErrUnavailable.
func (e *Engine) missing(ctx context.Context, full string, err error) error {
	switch {
	case !strings.Contains(err.Error(), "does not exist"): // other failures do not prove that the dataset is missing
		return unavailable(err)
	case e.there(ctx, e.root):
		return fmt.Errorf("dataset %s %w", full, ErrNotFound)
	}
	return e.noRoot(ctx, err)
}

// there reports whether a dataset or snapshot of that name exists.
func (e *Engine) there(ctx context.Context, full string) bool {
	_, err := e.run(ctx, "list", "-H", "-t", "all", "-o", "name", full)
	return err == nil
}

// Create makes an empty dataset with its limits and tags, and mounts it. It makes the dataset completely or not at
// all. If the name is taken it returns ErrExists or ErrForeign.
func (e *Engine) Create(ctx context.Context, name string, s Spec) (string, error) {
	return e.make(ctx, name, s, "create")
}

// Clone makes a dataset as Create does, under the name in to, with the content of a snapshot of another dataset.
func (e *Engine) Clone(ctx context.Context, name, snapshot, to string, s Spec) (string, error) {
	p, err := e.get(ctx, name)
	if err != nil {
		return "", err
	}
	from, err := e.snapshot(ctx, p, snapshot)
	if err != nil {
		return "", err
	}
	return e.make(ctx, to, s, "clone", from)
}

// make makes a dataset with all its properties in one command, "create" or "clone", and mounts it.
func (e *Engine) make(ctx context.Context, name string, s Spec, command string, of ...string) (string, error) {
	full, err := e.full(name)
	if err != nil {
		return "", err
	}
	dir := ""
	if s.Dir != "" {
		if dir, err = mountDir(s.Dir); err != nil {
			return "", err
		}
	}
	if err := e.makeParent(ctx, full); err != nil {
		return "", err
	}
	err = e.do(ctx, slices.Concat([]string{command}, s.options(dir), of, []string{full})...)
	if err != nil {
		return "", cmp.Or(e.taken(ctx, name), err)
	}
	if dir == "" {
		return "", nil
	}
	// the dataset exists before its directory: after a kill, a clean-up finds the directory in the property mountpoint
	err = e.mount(ctx, full, dir)
	if err != nil {
		return "", also(err, cmp.Or(e.do(context.WithoutCancel(ctx), "destroy", full), removeMountDir(dir)))
	}
	return s.Dir, nil
}

// taken returns ErrExists or ErrForeign if a dataset of this name exists, and otherwise nil.
func (e *Engine) taken(ctx context.Context, name string) error {
	p, err := e.get(ctx, name)
	if err == nil {
		return fmt.Errorf("dataset %s %w", p.full, ErrExists)
	}
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// makeParent makes the parent of a dataset unless it exists.
func (e *Engine) makeParent(ctx context.Context, full string) error {
	parent := full[:strings.LastIndex(full, "/")]
	if parent == e.root {
		return nil
	}
	found, err := e.properties(ctx, 0, parent)
	if err == nil {
		return checkFolder(found[0])
	}
	if err = e.missing(ctx, parent, err); !errors.Is(err, ErrNotFound) {
		return err
	}
	err = e.do(ctx, "create", "-o", "mountpoint=none", "-o", "canmount=off",
		"-o", "devices=off", "-o", "setuid=off", parent) // a task must not leave setuid programs or device nodes
	if err != nil && !e.there(ctx, parent) { // another process may have made the parent
		return err
	}
	return nil
}

// checkFolder returns an error if p is not a folder for datasets. Another tool may have made a dataset with the name of
// a namespace. Nothing is made below such a dataset: its owner may destroy or replace it with everything below it.
func checkFolder(p properties) error {
	if p.value("canmount") == "off" && p.tags() == nil {
		return nil
	}
	return fmt.Errorf("no dataset can be made below %s: adopt or rename %s, or set its property canmount to off",
		p.full, p.full)
}

// options returns the options for the creation of a dataset.
func (s Spec) options(dir string) (options []string) {
	// set explicitly, because the parent may be another tool's: a task must not leave setuid programs or device nodes
	properties := []string{"devices=off", "setuid=off", "canmount=noauto", "mountpoint=" + cmp.Or(dir, "none")}
	for _, property := range slices.Concat(properties, s.limits(), []string{s.Tags.encode()}) {
		options = append(options, "-o", property)
	}
	return options
}

// limits returns the limits as properties. The quota of a dataset includes the space of its snapshots.
func (l Limits) limits() []string {
	refquota, quota := "none", "none"
	if l.Data > 0 {
		refquota = strconv.FormatInt(l.Data, 10)
	}
	if l.Data > 0 && l.Snapshots > 0 {
		quota = strconv.FormatInt(l.Data+l.Snapshots, 10)
	}
	return []string{"refquota=" + refquota, "quota=" + quota}
}

// encode returns tags as a property with its value.
func (t Tags) encode() string {
	text, _ := json.Marshal(t.With(nil)) // a map of strings can't fail
	return tagProperty + "=" + string(text)
}

// Tag sets these tags and keeps the others; an empty value removes a tag. It works even if the dataset is full.
func (e *Engine) Tag(ctx context.Context, name string, t Tags) error {
	p, err := e.get(ctx, name)
	if err != nil {
		return err
	}
	return e.do(ctx, "set", p.tags().With(t).encode(), p.full)
}

// Resize changes the limits. If more space is in use, it returns ErrTooSmall and changes nothing.
func (e *Engine) Resize(ctx context.Context, name string, l Limits) error {
	p, err := e.get(ctx, name)
	if err != nil {
		return err
	}
	set := func(ctx context.Context, l Limits) error {
		return e.do(ctx, slices.Concat([]string{"set"}, l.limits(), []string{p.full})...)
	}
	if err := set(ctx, l); err != nil {
		return also(err, set(context.WithoutCancel(ctx), p.dataset(name, nil).Limits)) // undoes a partial change
	}
	return nil
}

// Destroy removes a dataset with its snapshots, if it exists. It returns ErrHasClones if clones depend on the dataset.
// It returns ErrInUse if the dataset can't be unmounted, has another mount, or has a held snapshot.
func (e *Engine) Destroy(ctx context.Context, name string) error {
	p, err := e.get(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := e.dependents(ctx, p.full); err != nil {
		return err
	}
	remount, err := e.unmount(ctx, p)
	if err != nil {
		return err
	}
	err = mountedElsewhere(p)
	if err == nil { // -r is for the snapshots: dependents found no child datasets
		err = e.held(ctx, p.full, e.do(ctx, "destroy", "-r", p.full))
	}
	if err != nil {
		return also(err, remount())
	}
	return nil
}

// held adds the names of held snapshots to the error of a destroy, because zfs reports only that a snapshot is busy.
func (e *Engine) held(ctx context.Context, full string, err error) error {
	if !errors.Is(err, ErrInUse) {
		return err
	}
	list, listErr := e.run(ctx, "list", "-H", "-r", "-d", "1", "-t", "snapshot", "-o", "name,userrefs", full)
	var names []string
	for line := range strings.Lines(list) {
		name, holds, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if n, _ := strconv.Atoi(holds); n > 0 {
			names = append(names, name)
		}
	}
	if listErr != nil || len(names) == 0 {
		return err
	}
	return fmt.Errorf("%w: snapshots have holds: %s (see: zfs holds %s)", err, strings.Join(names, ", "), names[0])
}

// dependents returns an error if clones depend on a dataset's snapshots, or if somebody made child datasets
// below it.
func (e *Engine) dependents(ctx context.Context, full string) error {
	text, err := e.run(ctx, "list", "-H", "-r", "-t", "filesystem,volume", "-o", "name,origin", e.root)
	if err != nil {
		return unavailable(err)
	}
	for line := range strings.Lines(text) {
		name, origin, _ := strings.Cut(strings.TrimSpace(line), "\t")
		switch {
		case strings.HasPrefix(name, full+"/"):
			return fmt.Errorf("dataset %s has a child dataset %w: %s", full, ErrForeign, name)
		case strings.HasPrefix(origin, full+"@"):
			return fmt.Errorf("dataset %s is the origin of the clone %s: %w", full, name, ErrHasClones)
		}
	}
	return nil
}

// Rename moves a dataset, with its snapshots, to a new name below the root, and leaves it unmounted. It returns
// ErrInUse and changes nothing if the kernel reports the dataset as busy. OpenZFS also renames a dataset that is
// mounted in other mount namespaces; processes there can still use their files.
func (e *Engine) Rename(ctx context.Context, from, to string) error {
	target, err := e.full(to)
	if err != nil {
		return err
	}
	p, err := e.get(ctx, from)
	if err != nil {
		return err
	}
	remount, err := e.unmount(ctx, p)
	if err != nil {
		return err
	}
	err = e.makeParent(ctx, target)
	if err == nil {
		err = e.do(ctx, "rename", p.full, target)
	}
	if err != nil && !errors.Is(err, ErrInUse) && e.there(ctx, target) {
		err = fmt.Errorf("dataset %s %w", target, ErrExists)
	}
	if err != nil {
		return also(err, remount())
	}
	return nil
}

// snapshot returns the full ZFS name of an existing snapshot.
func (e *Engine) snapshot(ctx context.Context, p properties, snapshot string) (string, error) {
	full, err := snapshotName(p.full, snapshot)
	if err != nil {
		return "", err
	}
	if !e.there(ctx, full) {
		return "", fmt.Errorf("snapshot %s %w", full, ErrNotFound)
	}
	return full, nil
}

// snapshotName returns a snapshot's full ZFS name. It refuses characters that mean a list or range in "zfs destroy".
func snapshotName(full, snapshot string) (string, error) {
	if !component.MatchString(snapshot) {
		return "", fmt.Errorf("%q can't be the name of a snapshot: use letters, digits, dashes, dots, colons and "+
			"underscores", snapshot)
	}
	return full + "@" + snapshot, nil
}

// Snapshot makes a snapshot, or returns ErrExists if the dataset has a snapshot of that name.
func (e *Engine) Snapshot(ctx context.Context, name, snapshot string) error {
	p, err := e.get(ctx, name)
	if err != nil {
		return err
	}
	full, err := snapshotName(p.full, snapshot)
	if err != nil {
		return err
	}
	if err := e.do(ctx, "snapshot", full); err != nil {
		if e.there(ctx, full) {
			return fmt.Errorf("snapshot %s %w", full, ErrExists)
		}
		return err
	}
	return nil
}

// Rollback restores a dataset to its last snapshot. If later snapshots or bookmarks exist, it returns ErrLaterSnapshots
// and changes nothing. It returns ErrInUse if the dataset can't be unmounted or has another mount: zfs would change
// even open files.
func (e *Engine) Rollback(ctx context.Context, name, snapshot string) error {
	p, err := e.get(ctx, name)
	if err != nil {
		return err
	}
	full, err := e.snapshot(ctx, p, snapshot)
	if err != nil {
		return err
	}
	remount, err := e.unmount(ctx, p)
	if err != nil {
		return err
	}
	err = mountedElsewhere(p)
	if err == nil {
		err = e.do(ctx, "rollback", full)
	}
	mountErr := remount()
	if err == nil && mountErr != nil {
		return fmt.Errorf("dataset %s was rolled back, but can't be mounted again: %w", p.full, mountErr)
	}
	return also(err, mountErr)
}
