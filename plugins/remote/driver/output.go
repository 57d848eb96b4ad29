// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	corelogs "github.com/outrider-dev/outrider/internal/core/logs"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// logs is how much output of a task is kept.
type logs struct {
	Off         bool  `json:"off,omitempty"`
	MaxFiles    int   `json:"max_files"`
	MaxFileSize int64 `json:"max_file_size"` // in bytes
}

func logsOf(cfg *drivers.TaskConfig, c *TaskConfig) logs {
	o := c.Logs
	if o == nil {
		o = &core.LogOptions{MaxFiles: 10, MaxFileSize: 10}
	}
	return logs{
		Off:      cfg.StdoutPath == os.DevNull && cfg.StderrPath == os.DevNull,
		MaxFiles: o.MaxFiles, MaxFileSize: int64(o.MaxFileSize) << 20,
	}
}

// copyOutput copies the output from the host's files to the same files on this node, where it goes on at their
// end. It returns when the task has ended and all is copied, or with ctx or the connection.
func (t *remoteTask) copyOutput(ctx context.Context, link *host.Link) error {
	if t.saved.Logs.Off {
		return nil
	}
	request := &shim.LogsRequest{TaskID: t.saved.Run.TaskID, AllocID: t.saved.Run.AllocID, Task: t.config.Name}
	var copies [2]*corelogs.Copy
	for i, place := range []*shim.Place{&request.Stdout, &request.Stderr} {
		name := t.config.Name + []string{".stdout", ".stderr"}[i]
		place.Number, place.Size = corelogs.End(t.config.AllocDir, name)
		// a file may end with a whole line behind its limit
		copies[i] = corelogs.NewCopy(t.config.AllocDir, name, t.saved.Logs.MaxFiles, 2*t.saved.Logs.MaxFileSize)
		defer copies[i].Close()
		if err := t.save(ctx, copies[i], &shim.LogsChunk{Number: place.Number}); err != nil { // also without output
			return err
		}
	}
	next, err := shim.Logs(ctx, link.Shim, request)
	for err == nil {
		var chunk *shim.LogsChunk
		chunk, err = next()
		if err != nil {
			break
		}
		to := copies[0]
		if chunk.Stderr {
			to = copies[1]
		}
		if err := t.save(ctx, to, chunk); err != nil {
			return err
		}
		t.copied.Add(1)
	}
	if errors.Is(err, io.EOF) || ctx.Err() != nil || !link.Alive() {
		return nil
	}
	return err
}

// fullPause is the time between two attempts to write to a full disk.
const fullPause = time.Second

// save waits for space where there is none: the host keeps the output.
func (t *remoteTask) save(ctx context.Context, to *corelogs.Copy, chunk *shim.LogsChunk) error {
	data, told := chunk.Data, false
	for {
		n, err := to.Write(chunk.Number, data)
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
		if !told {
			t.event("The output waits on the host: %v", err)
			told = true
		}
		data = data[n:]
		select {
		case <-time.After(fullPause):
		case <-ctx.Done():
			return nil
		}
	}
}
