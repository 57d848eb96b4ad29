// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package slot

import (
	"context"
	"strings"
	"time"

	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// measured is how old statistics may be: Nomad asks each second, and each look starts a
// program.
const measured = 10 * time.Second

// Stats is part of device.StatsReporter.
func (i *instance) Stats(ctx context.Context, ids []string) (map[string]*nomad.DeviceStats, error) {
	i.mu.Lock()
	now := i.last
	i.mu.Unlock()
	if time.Since(now.at) > measured {
		now = i.look(ctx)
	}
	held := map[string]lease{}
	for _, l := range now.leases {
		held[l.slot()] = l
	}
	all := map[string]*nomad.DeviceStats{}
	for _, id := range ids {
		c, e := i.class(id[:max(0, strings.LastIndex(id, "-"))])
		if e == nil || c.Slots == nil || now.failed[e] != nil {
			continue
		}
		quota, used, holder := c.Slots.Capacity.Bytes(), int64(0), ""
		if l, reserved := held[id]; reserved {
			quota, used, holder = l.Limits.Data, l.Usage.Data, l.Tags[engine.Holder]
		}
		free := max(0, quota-used)
		all[id] = &nomad.DeviceStats{
			Summary: &structs.StatValue{IntNumeratorVal: &used, IntDenominatorVal: &quota, Unit: "bytes", Desc: "Used"},
			Stats: &structs.StatObject{Attributes: map[string]*structs.StatValue{
				"Used":      {IntNumeratorVal: &used, Unit: "bytes", Desc: "What the slot's files take"},
				"Available": {IntNumeratorVal: &free, Unit: "bytes", Desc: "What may still be written"},
				"Holder":    {StringVal: &holder, Desc: "The allocation and task that hold the slot, if the API has shown them"},
			}},
			Timestamp: now.at,
		}
	}
	return all, nil
}
