// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	corelogs "github.com/outrider-dev/outrider/internal/core/logs"
)

const (
	chunkSize = 256 << 10

	// How long the files are left alone after a look that found nothing. It doubles each time.
	shortestPause = 20 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// logs sends the output of a task from the files on this host, until the task has ended or ctx has. The streams take
// turns.
func (h *host) logs(ctx context.Context, r *LogsRequest, send func(*LogsChunk) error) error {
	dir, err := h.allocs.path(r.AllocID)
	if err != nil {
		return err
	}
	stdout := corelogs.NewReader(dir, r.Task+".stdout", r.Stdout.Number, r.Stdout.Size)
	defer stdout.Close()
	stderr := corelogs.NewReader(dir, r.Task+".stderr", r.Stderr.Number, r.Stderr.Size)
	defer stderr.Close()
	buffer := make([]byte, chunkSize)
	pause := shortestPause
	for {
		over, sent := h.hasEnded(r.TaskID), false // asked first: all output is in the files before an exit is told
		for _, reader := range []*corelogs.Reader{stdout, stderr} {
			number, n, err := reader.Read(buffer)
			if err == nil && n > 0 {
				sent = true
				err = send(&LogsChunk{Stderr: reader == stderr, Number: number, Data: buffer[:n]})
			}
			if err != nil {
				return err
			}
		}
		if sent {
			pause = shortestPause
			continue
		}
		if over {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		pause = min(2*pause, longestPause)
	}
}

// hasEnded is true also for a task that is not known any more.
func (h *host) hasEnded(id string) bool {
	status, err := h.InspectTask(id)
	return err != nil || status.State == drivers.TaskStateExited
}
