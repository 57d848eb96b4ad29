// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// Stale returns what a person should know of the file system besides its datasets: qgroups
// that have outlived their subvolumes, whosever they were. Each makes the file system slower.
func (b *btrfs) Stale(ctx context.Context) ([]string, error) {
	pending := b.pending()
	q, err := b.quota()
	if err != nil {
		return nil, err
	}
	text, err := b.program.run(ctx, "qgroup", "show", "-c", b.root)
	if err != nil {
		return nil, err
	}
	var groups []string
	for line := range strings.Lines(text) {
		// id, referenced, exclusive, children, path: btrfs counts no members in the path
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		// a name of a task's may look like a line, and does no harm here
		stale := strings.HasPrefix(f[0], "0/") && f[4] == "<stale>" || strings.HasPrefix(f[0], "1/") && f[3] == "-"
		// one that still counts blocks is going, too: its record is below another root
		if stale && !pending[f[0]] && q.referenced(f[0]) == 0 {
			groups = append(groups, f[0])
		}
	}
	if len(groups) == 0 {
		return nil, nil
	}
	const most = 5
	return []string{fmt.Sprintf("%d qgroups of the btrfs of %s have no subvolume any more (%s): remove each with \"btrfs "+
		"qgroup destroy ID %s\"", len(groups), b.root, strings.Join(groups[:min(most, len(groups))], ", "), b.root)}, nil
}

// pending are the qgroups that go with what is being destroyed, when the kernel has given them up.
func (b *btrfs) pending() map[string]bool {
	groups := map[string]bool{}
	records, _ := filepath.Glob(b.path(gonePrefix + "*" + recordSuffix))
	for _, path := range records {
		if r, err := b.read(newDir + "/" + strings.TrimSuffix(filepath.Base(path), recordSuffix)); err == nil {
			groups[subvolumeGroup(r.Subvolume)], groups[r.group()] = true, true
		}
	}
	return groups
}
