// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package host

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto"
)

func TestChecked_RefusesIncompleteMessages(t *testing.T) {
	c := checked{encoding.GetCodecV2("proto")}
	for _, row := range []struct {
		answer, into any
		whole        bool
	}{
		{answer: &proto.StartTaskResponse{}, into: &proto.StartTaskResponse{}},
		{answer: &proto.ExecTaskResponse{}, into: &proto.ExecTaskResponse{}},
		{answer: &proto.InspectTaskResponse{Task: &proto.TaskStatus{}}, into: &proto.InspectTaskResponse{}},
		{answer: &proto.TaskStatsResponse{Stats: &proto.TaskStats{}}, into: &proto.TaskStatsResponse{}},
		{
			answer: &proto.StartTaskResponse{Handle: &proto.TaskHandle{Config: &proto.TaskConfig{}}},
			into:   &proto.StartTaskResponse{}, whole: true,
		},
		{answer: &proto.StopTaskResponse{}, into: &proto.StopTaskResponse{}, whole: true},
	} {
		data, err := c.Marshal(row.answer)
		must.NoError(t, err)
		err = c.Unmarshal(data, row.into)
		test.Eq(t, row.whole, err == nil, test.Sprintf("%T: %v", row.answer, err))
	}
}
