// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package host

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"google.golang.org/grpc"
)

// checkReply refuses what Nomad's client takes for granted, and would end the plugin of a node: it is made for
// plugins of the same machine (plugins/drivers/client.go).
func checkReply(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	if err := invoke(ctx, method, request, reply, conn, options...); err != nil {
		return err
	}
	return check(reply)
}

// checkStream is checkReply for what streams bring.
func checkStream(
	ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := open(ctx, description, conn, method, options...)
	return checkedStream{stream}, err
}

type checkedStream struct{ grpc.ClientStream }

func (s checkedStream) RecvMsg(message any) error {
	if err := s.ClientStream.RecvMsg(message); err != nil {
		return err
	}
	return check(message)
}

func check(message any) error {
	whole := true
	switch m := message.(type) {
	case *proto.StartTaskResponse:
		whole = m.GetHandle().GetConfig() != nil
	case *proto.ExecTaskResponse:
		whole = m.GetResult() != nil
	case *proto.InspectTaskResponse:
		whole = m.GetTask().GetResult() != nil
	case *proto.TaskStatsResponse:
		whole = m.GetStats().GetAggResourceUsage() != nil
	}
	if !whole {
		return fmt.Errorf("the host's answer is not whole: %T", message)
	}
	return nil
}
