// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"errors"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// output says where a task's output goes on this node.
type output struct {
	AllocDir string `json:"alloc_dir"`
	Alloc    string `json:"alloc"`
	Task     string `json:"task"`
	MaxFiles int    `json:"max_files"`
	MaxSize  int64  `json:"max_size"`
}

func outputOf(c *drivers.TaskConfig, spec *endpoint.Spec) output {
	return output{AllocDir: c.AllocDir, Alloc: c.AllocID, Task: c.Name, MaxFiles: spec.MaxFiles, MaxSize: spec.MaxSize}
}

func (o output) name(stream string) string { return o.Task + "." + stream }

// behind is how much of a stream is in the allocation's files behind a place.
func (o output) behind(stream string, from task.LogPlace) (int64, error) {
	return logs.Behind(o.AllocDir, o.name(stream), int64(from.File), from.Offset)
}

// yield removes the output that another allocation has too. It is called when that one has taken
// the object over, with its record: of what this node copied and stored no mark for any more, the
// new owner knows nothing, and copies it again.
func (o output) yield(r *endpoint.Record) error {
	if r.Owner.Alloc == o.Alloc || isEnding(r) {
		return nil // the next start of this allocation goes on in its files; who ends an object copies nothing
	}
	var errs []error
	for stream, m := range r.Logs {
		if m.Alloc != o.Alloc && m.Before != nil {
			m = *m.Before
		}
		if m.Alloc == o.Alloc && (stream == "stdout" || stream == "stderr") {
			errs = append(errs, logs.Truncate(o.AllocDir, o.name(stream), int64(m.Local.File), m.Local.Offset))
		}
	}
	return errors.Join(errs...)
}
