// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Below returns the name of a dataset that zfs calls full. It is below the root of this engine, or not.
func (e *Engine) Below(full string) (name string, is bool) {
	return strings.CutPrefix(full, e.root+"/")
}

// Adoptable returns a dataset that Adopt can take, whoever has made it, or why there is none. Its tags are those
// that it was given here.
func (e *Engine) Adoptable(ctx context.Context, name string) (Dataset, error) {
	full, err := e.full(name)
	if err != nil {
		return Dataset{}, fmt.Errorf("%w: it has to be below %s, or one level deeper, and its name of letters, digits and "+
			"._:+-", err, e.root)
	}
	if strings.HasPrefix(name, ".") {
		return Dataset{}, fmt.Errorf("dataset %s is in a folder that is the plugin's own", full)
	}
	if !e.there(ctx, full) {
		_, err := e.get(ctx, name) // for the reason
		return Dataset{}, err
	}
	found, err := e.properties(ctx, 1, full)
	if err != nil {
		return Dataset{}, unavailable(err)
	}
	for _, below := range found[1:] {
		if strings.HasPrefix(below.full, full+"/") {
			return Dataset{}, fmt.Errorf("dataset %s has another below it, %s, and a volume has none", full, below.full)
		}
	}
	mounted, err := ownMounts()
	if err != nil {
		return Dataset{}, err
	}
	p := found[0]
	switch at := mountsOf(mounted, full); {
	case p.value("type") != "filesystem":
		return Dataset{}, fmt.Errorf("%s is a %s, not a file system", full, p.value("type"))
	case len(at) > 0:
		return Dataset{}, fmt.Errorf("dataset %s is mounted at %s: unmount it first (zfs unmount %s)", full,
			at[0].Mountpoint, full)
	case strings.Trim(p.value("receive_resume_token"), "-") != "":
		return Dataset{}, fmt.Errorf("dataset %s was received in part: send the rest first", full)
	case p.bytes("refquota") == 0:
		return Dataset{}, fmt.Errorf("dataset %s has no refquota, which is a volume's capacity: set one (zfs set "+
			"refquota=1G %s)", full, full)
	}
	return p.dataset(name, nil), nil
}

// adopted are the properties that a dataset of this package has, which another tool may have set otherwise.
var adopted = []string{"canmount=noauto", "mountpoint=none", "devices=off", "setuid=off", "readonly=off",
	"sharenfs=off", "sharesmb=off"}

// Adopt makes a dataset that is Adoptable one of this package, with these tags and no others. It stays where it is. A
// call that was killed can be repeated: the tags come last.
func (e *Engine) Adopt(ctx context.Context, name string, t Tags) error {
	full, err := e.full(name)
	if err != nil {
		return err
	}
	text, err := t.encode()
	if err != nil {
		return err
	}
	return e.do(ctx, slices.Concat([]string{"set"}, adopted, []string{tagProperty + "=" + text, full})...)
}

// Restore takes a volume out of the trash, to where it was, and leaves it unmounted. With the tag ID it is the same as
// before, and with Adopt one that waits for a new volume. The caller holds its lock and TrashLock. A call that
// was killed has changed nothing but the tags of what is in the trash, where it stays then until it is restored or
// emptied, or is done.
func (e *Engine) Restore(ctx context.Context, d Dataset, t Tags) (name string, err error) {
	id, _, _ := strings.Cut(TrashLock(d.Name), ".")
	name = VolumeName(d.Tags[Namespace], id)
	if _, err := e.Get(ctx, name); err == nil {
		return "", fmt.Errorf("dataset %s: %w", name, ErrExists)
	} else if !errors.Is(err, ErrNotFound) {
		return "", err
	}
	tags, before := Tags{}, Tags{}
	for _, tag := range []string{ID, Adopt, Trashed, Kept, Passed, From} {
		tags[tag], before[tag] = t[tag], d.Tags[tag]
	}
	if err := e.Tag(ctx, d.Name, tags); err != nil {
		return "", err
	}
	if err := e.Rename(ctx, d.Name, name); err != nil {
		return "", also(err, e.Tag(context.WithoutCancel(ctx), d.Name, before))
	}
	return name, nil
}
