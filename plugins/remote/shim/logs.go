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
	chunkSize    = 256 << 10
	chunksOfTurn = 16 // of one stream, before the other one has its turn

	// How long the files are left alone after a look that found nothing. It doubles each time.
	shortestPause = 20 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// logs sends the output of a task from the files on this host, until the task has ended or ctx has.
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
		over := h.hasEnded(r.TaskID) // asked first: all output is in the files before an exit is told
		fromStdout, err := sendSome(stdout, false, buffer, send)
		if err != nil {
			return err
		}
		fromStderr, err := sendSome(stderr, true, buffer, send)
		if err != nil {
			return err
		}
		if fromStdout || fromStderr {
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

// sendSome sends what there is of one stream, but not all of a flood.
func sendSome(r *corelogs.Reader, stderr bool, buffer []byte, send func(*LogsChunk) error) (sent bool, err error) {
	for range chunksOfTurn {
		number, n, err := r.Read(buffer)
		if err != nil {
			return sent, err
		}
		if n == 0 {
			break
		}
		if err := send(&LogsChunk{Stderr: stderr, Number: number, Data: buffer[:n]}); err != nil {
			return sent, err
		}
		sent = true
	}
	return sent, nil
}

// hasEnded is true also for a task that is not known any more.
func (h *host) hasEnded(id string) bool {
	status, err := h.InspectTask(id)
	return err != nil || status.State == drivers.TaskStateExited
}
