// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/nomad/helper/pointer"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
)

// Stats is part of device.DevicePlugin. The stream ends only when ctx ends. After an interval in which nothing could be
// measured, nothing is sent.
func (p *Server) Stats(ctx context.Context, interval time.Duration) (<-chan *device.StatsResponse, error) {
	inst, err := p.configuredInstance()
	if err != nil {
		return nil, err
	}
	if interval <= 0 {
		interval = time.Second
	}
	out := make(chan *device.StatsResponse)
	go func() {
		defer close(out)
		if inst.stats == nil {
			<-ctx.Done()
			return
		}
		p.measureEach(ctx, inst.stats, interval, out)
	}()
	return out, nil
}

func (p *Server) measureEach(ctx context.Context, m StatsReporter, interval time.Duration,
	out chan<- *device.StatsResponse) {
	failing := once{log: p.logger.Error}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		groups, err := p.measure(ctx, m)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failing.failed("failed to measure devices", err)
		} else if failing.over() {
			p.logger.Info("measuring devices works again")
		}
		if len(groups) > 0 {
			select {
			case out <- &device.StatsResponse{Groups: groups}:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// measure returns statistics of the published devices, under their published names: Nomad finds the statistics of a
// task's devices by these names.
func (p *Server) measure(ctx context.Context, m StatsReporter) (groups []*device.DeviceGroupStats, err error) {
	now := p.current.Load()
	var ids []string
	for _, g := range now.groups {
		for _, d := range g.Devices {
			ids = append(ids, d.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	var measured map[string]*device.DeviceStats
	err = fingerprint.Guard(func() (err error) {
		measured, err = m.Stats(ctx, slices.Clone(ids))
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, g := range now.groups {
		answer := map[string]*device.DeviceStats{}
		for _, d := range g.Devices {
			if s := measured[d.ID]; s != nil {
				answer[d.ID] = completeStats(s, d)
			}
		}
		if len(answer) > 0 {
			groups = append(groups, &device.DeviceGroupStats{Vendor: g.Vendor, Type: g.Type, Name: g.Name,
				InstanceStats: answer})
		}
	}
	return groups, nil
}

// completeStats returns a copy of s without values that gRPC or JSON can't encode, and with all fields filled in. The
// default of Summary is the device's health, and that of Stats is an empty object: Nomad's commands panic without an
// object (command/helper_devices.go).
func completeStats(s *device.DeviceStats, d *device.Device) *device.DeviceStats {
	c := &device.DeviceStats{Summary: cleanValue(s.Summary), Stats: cleanObject(s.Stats), Timestamp: s.Timestamp}
	if c.Summary == nil {
		health := "healthy"
		if !d.Healthy {
			health = d.HealthDesc
		}
		c.Summary = &structs.StatValue{StringVal: &health, Desc: "Health"}
	}
	if c.Stats == nil {
		c.Stats = &structs.StatObject{}
	}
	if c.Timestamp.IsZero() {
		c.Timestamp = time.Now()
	}
	return c
}

func cleanObject(o *structs.StatObject) *structs.StatObject {
	if o == nil {
		return nil
	}
	c := &structs.StatObject{Nested: map[string]*structs.StatObject{}, Attributes: map[string]*structs.StatValue{}}
	for name, v := range o.Attributes {
		if v = cleanValue(v); v != nil {
			c.Attributes[text(name)] = v
		}
	}
	for name, n := range o.Nested {
		if n = cleanObject(n); n != nil {
			c.Nested[text(name)] = n
		}
	}
	return c
}

func cleanValue(v *structs.StatValue) *structs.StatValue {
	if v == nil {
		return nil
	}
	c := *v
	for _, f := range []*float64{c.FloatNumeratorVal, c.FloatDenominatorVal} {
		if f != nil && (math.IsNaN(*f) || math.IsInf(*f, 0)) {
			return nil
		}
	}
	if c.StringVal != nil {
		c.StringVal = pointer.Of(text(*c.StringVal))
	}
	c.Unit, c.Desc = text(c.Unit), text(c.Desc)
	return &c
}
