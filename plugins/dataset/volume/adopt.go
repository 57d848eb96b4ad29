// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// Recorded reports whether the volume with the mount point dir has a record. It returns true if it can't tell.
func Recorded(dir string) bool {
	_, err := os.Lstat(records{filepath.Join(filepath.Dir(dir), recordsDir)}.path(filepath.Base(dir), recordFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// adoptable returns the dataset that waits for a volume with the key v.Adopt.
func (c *call) adoptable(ctx context.Context, e *engine.Engine, v *policy.Volume) (engine.Dataset, error) {
	all, err := e.List(ctx)
	if err != nil {
		return engine.Dataset{}, err
	}
	for _, d := range all {
		switch {
		case d.Tags[engine.Adopt] != v.Adopt || !d.Waits():
		case d.Tags[engine.Namespace] != c.Namespace:
			return d, fmt.Errorf("the key in \"adopt\" is for namespace %q: use that namespace", d.Tags[engine.Namespace])
		default:
			return d, nil
		}
	}
	return engine.Dataset{}, fmt.Errorf("class %q has no dataset with the key in \"adopt\": use the key that "+
		"\"nomad-device-dataset adopt\" prints on this node", v.Class)
}

// adopt turns a dataset into this volume. Its files keep their owners.
func (c *call) adopt(ctx context.Context, e *engine.Engine, rec *record, v *policy.Volume, name string) (string,
	error) {
	ctx, unlock, err := locks.Lock(ctx, path.Base(name), limit)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := e.Resize(ctx, name, v.Spec.Limits); err != nil {
		return "", err
	}
	tags := engine.Tags{engine.From: name, engine.Kept: "", engine.Passed: ""}
	maps.Copy(tags, v.Spec.Tags)
	if err := e.Tag(ctx, name, tags); err != nil {
		return "", err
	}
	at("tagged")
	if err := e.Rename(ctx, name, rec.dataset()); err != nil {
		return "", err
	}
	at("renamed")
	return e.Mount(ctx, rec.dataset(), c.dir)
}

// giveBack undoes adopt: it renames the dataset to its previous name, where the dataset waits for the next create.
func giveBack(ctx context.Context, e *engine.Engine, name string, d engine.Dataset) error {
	err := e.Rename(ctx, name, d.Tags[engine.From])
	if errors.Is(err, engine.ErrExists) || errors.Is(err, engine.ErrForeign) { // the name is taken: append the id
		err = e.Rename(ctx, name, d.Tags[engine.From]+"."+d.Tags[engine.ID])
	}
	return err
}
