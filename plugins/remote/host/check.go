// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package host

import (
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// checked is gRPC's codec for Nomad's messages. It refuses what Nomad's client takes for granted, and would end the
// plugin of a node: that is made for plugins of the same machine (plugins/drivers/client.go).
type checked struct{ encoding.CodecV2 }

func (c checked) Unmarshal(data mem.BufferSlice, message any) error {
	if err := c.CodecV2.Unmarshal(data, message); err != nil {
		return err
	}
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
