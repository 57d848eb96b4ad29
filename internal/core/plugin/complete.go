// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// completeWait keeps an empty answer to WaitTask from the agent, which panics on
// it before Nomad 1.11.3 (plugins/drivers/client.go, handleWaitTask), and a nil
// result from the server half, which panics on it in every version
// (server.go, WaitTask). Either becomes an error in words, never an exit code 0.
func completeWait(logger hclog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		wait, ok := req.(*proto.WaitTaskRequest)
		if !ok {
			return handler(ctx, req)
		}
		missing := fmt.Sprintf("driver gave no exit result for task %q", wait.GetTaskId())
		defer func() {
			if r := recover(); r != nil {
				logger.Error(missing, "panic", r, "stack", string(debug.Stack()))
				resp, err = nil, status.Error(codes.Internal, missing)
			}
		}()
		resp, err = handler(ctx, req)
		if answer, ok := resp.(*proto.WaitTaskResponse); ok && err == nil && answer.GetResult() == nil {
			if answer.Result = (&proto.ExitResult{ExitCode: -1}); answer.Err == "" {
				answer.Err = missing
			}
		}
		return resp, err
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
