// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"fmt"
	"strings"
)

// Stale returns what a person should know of the file system besides its datasets: qgroups
// that have outlived their subvolumes, whosever they were. Each makes the file system slower.
func (b *btrfs) Stale(ctx context.Context) ([]string, error) {
	text, err := b.program.run(ctx, "qgroup", "show", b.root)
	if err != nil {
		return nil, err
	}
	var groups []string
	for line := range strings.Lines(text) {
		id, rest, _ := strings.Cut(line, " ") // a name of a task's may look like a line, and does no harm here
		if strings.HasPrefix(id, "0/") && strings.Contains(rest, "<stale>") ||
			strings.HasPrefix(id, "1/") && strings.Contains(rest, "<0 member qgroups>") {
			groups = append(groups, id)
		}
	}
	if len(groups) == 0 {
		return nil, nil
	}
	const most = 5
	return []string{fmt.Sprintf("%d qgroups of the btrfs of %s have no subvolume any more (%s): remove each with \"btrfs "+
		"qgroup destroy ID %s\"", len(groups), b.root, strings.Join(groups[:min(most, len(groups))], ", "), b.root)}, nil
}
