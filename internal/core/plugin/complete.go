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

// StartCaller is implemented by a driver that needs to know whether the agent still waits for a start. StartTask itself
// gets no context (plugins/drivers/driver.go).
type StartCaller interface {
	// StartCall is called before StartTask, with the context of the agent's call. done is called after StartTask.
	StartCall(ctx context.Context, taskID string) (done func())
}

// complete returns an interceptor that adds what Nomad's gRPC server for drivers lacks (plugins/drivers/server.go). A
// second interceptor would take more memory: each call that waits for a task keeps the stacks of all interceptors.
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

// maxTaskConfig is the maximum size of a task's config block in bytes, in the encoding that the agent sends. Decoding a
// block takes many times as much memory.
const maxTaskConfig = 4 << 20

// start handles StartTask. It refuses a config block that is too large to decode: the job's author chooses its size,
// and this process serves every task of the node. It also calls StartCall if the driver is a StartCaller.
func start(
	ctx context.Context, d drivers.DriverPlugin, req *proto.StartTaskRequest, handler grpc.UnaryHandler,
) (any, error) {
	n := len(req.GetTask().GetMsgpackDriverConfig())
	if n > maxTaskConfig {
		return nil, fmt.Errorf("the task's config block has %d bytes, and the limit is %d: move large content to a "+
			"template, an artifact or a volume", n, maxTaskConfig)
	}
	caller, wants := d.(StartCaller)
	if wants {
		defer caller.StartCall(ctx, req.GetTask().GetId())()
	}
	return handler(ctx, req)
}

// capabilities handles Capabilities. It adds two fields that the agent reads, but that Nomad's server for drivers does
// not set. Without them, no external driver could refuse volumes or run without logmon.
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

// printable replaces the unprintable characters in the text of an error. Parts of the text may come from a task or a
// job, and Nomad prints them unchanged in its commands and its log.
func printable(err error) error {
	s := status.Convert(err).Proto()
	s.Message = plain.Text(s.GetMessage())
	return status.ErrorProto(s)
}
