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

// StartCaller is a driver that wants to know whether the agent that asked for a
// start still waits for it: StartTask has no context (plugins/drivers/driver.go).
type StartCaller interface {
	// StartCall is called before StartTask with the context of the call, and what
	// it returns after it.
	StartCall(ctx context.Context, taskID string) (done func())
}

// complete does what Nomad's server half leaves out (plugins/drivers/server.go). It is one interceptor, and not one for
// each thing: a call that waits for a task keeps the stack of all of them for as long as the task runs.
func complete(d drivers.DriverPlugin) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		switch req := req.(type) {
		case *proto.StartTaskRequest:
			resp, err = start(ctx, d, req, handler)
		case *proto.CapabilitiesRequest:
			resp, err = capabilities(ctx, d, req, handler)
		default:
			resp, err = handler(ctx, req)
		}
		if err != nil {
			return nil, printable(err)
		}
		return resp, nil
	}
}

// maxTaskConfig is how many bytes a task's config block may have as the agent sends it.
// Decoding takes many times that of memory.
const maxTaskConfig = 4 << 20

// start protects the process that serves every task of the node from decoding a configuration
// block, whose size the author of a job chooses, and calls a StartCaller.
func start(
	ctx context.Context, d drivers.DriverPlugin, req *proto.StartTaskRequest, handler grpc.UnaryHandler,
) (any, error) {
	n := len(req.GetTask().GetMsgpackDriverConfig())
	if n > maxTaskConfig {
		return nil, fmt.Errorf("the task's config block has %d bytes, of which at most %d are taken: put what is large "+
			"into a template, an artifact or a volume", n, maxTaskConfig)
	}
	caller, wants := d.(StartCaller)
	if wants {
		defer caller.StartCall(ctx, req.GetTask().GetId())()
	}
	return handler(ctx, req)
}

// capabilities adds what Nomad's client half reads of the answer: without it no external driver can refuse volumes or
// do without logmon.
func capabilities(
	ctx context.Context, d drivers.DriverPlugin, req *proto.CapabilitiesRequest, handler grpc.UnaryHandler,
) (any, error) {
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

// printable makes the text of an error printable, since parts of it may be a task's or a job's: Nomad's
// commands and log show it as it is.
func printable(err error) error {
	said := status.Convert(err).Proto()
	said.Message = plain.Text(said.GetMessage())
	return status.ErrorProto(said)
}
