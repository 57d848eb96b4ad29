// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
)

// Logs is part of endpoint.Endpoint.
func (h *Host) Logs(ctx context.Context, name, stream string, from endpoint.Place, skip int64) (endpoint.LogReader,
	error) {
	b, err := json.Marshal(protocol.Request{Ref: endpoint.Ref{Name: name}, Stream: stream, From: from, Skip: skip})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	answer, err := h.post(ctx, protocol.OpLogs, nil, bytes.NewReader(b))
	if err != nil {
		cancel()
		return nil, err
	}
	if answer.Header.Get("Content-Type") == "application/json" {
		defer cancel()
		defer answer.Body.Close()
		if _, err = readReply(ctx, answer.Body, protocol.MaxReply); err == nil {
			err = fmt.Errorf("the shim answered with no output")
		}
		return nil, err
	}
	return &logReader{ctx: ctx, cancel: cancel, body: answer.Body, frames: protocol.FrameReader{R: answer.Body}}, nil
}

type logReader struct {
	ctx    context.Context
	cancel context.CancelFunc
	body   io.ReadCloser
	frames protocol.FrameReader
}

// Next is part of endpoint.LogReader.
func (r *logReader) Next() (endpoint.Chunk, error) {
	f, err := r.frames.Read()
	if err != nil {
		return endpoint.Chunk{}, unreachable(r.ctx, err)
	}
	if f.Type != protocol.FrameEnd {
		return f.Output()
	}
	var end protocol.End
	if err := json.Unmarshal(f.Data, &end); err != nil {
		return endpoint.Chunk{}, fmt.Errorf("the shim's answer can't be read: %w", err)
	}
	if end.Error != nil {
		return endpoint.Chunk{}, end.Error.Err()
	}
	return endpoint.Chunk{}, io.EOF
}

// Close is part of endpoint.LogReader.
func (r *logReader) Close() error {
	r.cancel()
	return r.body.Close()
}
