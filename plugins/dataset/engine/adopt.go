// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

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
	found, err := e.properties(ctx, 1, full)
	if err != nil {
		return Dataset{}, e.missing(ctx, full, err)
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
		return Dataset{}, fmt.Errorf("dataset %s is a %s, not a file system", full, p.value("type"))
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
	return e.do(ctx, slices.Concat([]string{"set"}, adopted, []string{t.encode(), full})...)
}
