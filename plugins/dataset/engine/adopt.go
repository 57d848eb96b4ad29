// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Adoptable returns a dataset that Adopt can take over, or an error that explains why Adopt can't. Any tool may have
// made the dataset. Its tags are nil unless this package has set them.
func (e *Engine) Adoptable(ctx context.Context, name string) (Dataset, error) {
	full, err := e.full(name)
	if err != nil {
		return Dataset{}, fmt.Errorf("%w: use one that is one or two levels below %s, with letters, digits and ._:+-",
			err, e.root)
	}
	if strings.HasPrefix(name, ".") {
		return Dataset{}, fmt.Errorf("dataset %s is reserved for the plugin", full)
	}
	found, err := e.properties(ctx, 1, full)
	if err != nil {
		return Dataset{}, e.missing(ctx, full, err)
	}
	for _, below := range found[1:] {
		if strings.HasPrefix(below.full, full+"/") {
			return Dataset{}, fmt.Errorf("dataset %s has a child dataset %s, which a volume can't have", full, below.full)
		}
	}
	mounted, err := ownMounts()
	if err != nil {
		return Dataset{}, err
	}
	p := found[0]
	switch at := mountsOf(mounted, full); {
	case p.value("type") != "filesystem":
		return Dataset{}, fmt.Errorf("dataset %s is a ZFS %s, not a file system", full, p.value("type"))
	case len(at) > 0:
		return Dataset{}, fmt.Errorf("dataset %s is mounted at %s: unmount it first (zfs unmount %s)", full,
			at[0].Mountpoint, full)
	case strings.Trim(p.value("receive_resume_token"), "-") != "":
		return Dataset{}, fmt.Errorf("dataset %s was received only in part: send the rest first", full)
	case p.bytes("refquota") == 0:
		return Dataset{}, fmt.Errorf("dataset %s has no refquota, which is a volume's capacity: set it (for example "+
			"zfs set refquota=1G %s)", full, full)
	}
	return p.dataset(name, nil), nil
}

// adopted are the properties that Adopt sets, because another tool may have set them differently.
var adopted = []string{"canmount=noauto", "mountpoint=none", "devices=off", "setuid=off", "readonly=off",
	"sharenfs=off", "sharesmb=off"}

// Adopt takes over a dataset that the caller has checked with Adoptable. The dataset gets exactly these tags, and keeps
// its name. After a kill, Adopt can be called again, because zfs sets the tags last.
func (e *Engine) Adopt(ctx context.Context, name string, t Tags) error {
	full, err := e.full(name)
	if err != nil {
		return err
	}
	return e.do(ctx, slices.Concat([]string{"set"}, adopted, []string{t.encode(), full})...)
}
