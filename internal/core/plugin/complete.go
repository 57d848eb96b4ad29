// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

// completeCapabilities adds what Nomad's server half leaves out of the answer
// (plugins/drivers/server.go, Capabilities) though its client half reads it:
// without it no external driver can refuse volumes or do without logmon.
func completeCapabilities(d drivers.DriverPlugin) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		answer, ok := resp.(*proto.CapabilitiesResponse)
		if err != nil || !ok || answer.GetCapabilities() == nil {
			return resp, err
		}
		caps, err := d.Capabilities()
		if err != nil {
			return nil, err
		}
		answer.Capabilities.MountConfigs = proto.DriverCapabilities_MountConfigs(caps.MountConfigs)
		answer.Capabilities.DisableLogCollection = caps.DisableLogCollection
		return answer, nil
	}
}

// StartCaller is a driver that wants to know whether the agent that asked for a
// start still waits for it: StartTask has no context (plugins/drivers/driver.go).
type StartCaller interface {
	// StartCall is called before StartTask with the context of the call, and what
	// it returns after it.
	StartCall(ctx context.Context, taskID string) (done func())
}

func tellStartCall(d drivers.DriverPlugin) grpc.UnaryServerInterceptor {
	caller, wants := d.(StartCaller)
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if start, ok := req.(*proto.StartTaskRequest); ok && wants {
			defer caller.StartCall(ctx, start.GetTask().GetId())()
		}
		return handler(ctx, req)
	}
}

// printableErrors makes the text of every error printable, since parts of it may be a task's or a job's: Nomad's
// commands and log show it as it is.
func printableErrors(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err == nil {
		return resp, nil
	}
	said := status.Convert(err).Proto()
	said.Message = plain.Text(said.GetMessage())
	return resp, status.ErrorProto(said)
}

// maxTaskConfig is how many bytes a task's config block may have as the agent sends it.
// Decoding takes many times that of memory.
const maxTaskConfig = 4 << 20

// refuseLargeConfig protects the process that serves every task of the node from decoding
// a configuration block, whose size the author of a job chooses.
func refuseLargeConfig(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if start, ok := req.(*proto.StartTaskRequest); ok {
		if n := len(start.GetTask().GetMsgpackDriverConfig()); n > maxTaskConfig {
			return nil, fmt.Errorf("the task's config block has %d bytes, of which at most %d are taken: put what is large "+
				"into a template, an artifact or a volume", n, maxTaskConfig)
		}
	}
	return handler(ctx, req)
}
