// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/helper/pointer"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

type meter func(ids []string) (map[string]*device.DeviceStats, error)

func (m meter) Stats(_ context.Context, ids []string) (map[string]*device.DeviceStats, error) {
	return m(ids)
}

func measured(t *testing.T, w *world, m StatsReporter) (*Server, *log, <-chan *device.StatsResponse) {
	t.Helper()
	s := supplied(w)
	s.stats = m
	p, log := start(t, s)
	next(t, stream(t, p))
	ch, err := p.Stats(t.Context(), 5*time.Second)
	must.NoError(t, err)
	return p, log, ch
}

func nextStats(t *testing.T, ch <-chan *device.StatsResponse) []*device.DeviceGroupStats {
	t.Helper()
	synctest.Wait()
	select {
	case r, open := <-ch:
		must.True(t, open, must.Sprintf("the stream ended: %+v", r))
		must.NoError(t, r.Error, must.Sprintf("the stream ended: %+v", r))
		return r.Groups
	default:
		t.Fatal("nothing was sent")
		panic("unreachable")
	}
}

func noStats(t *testing.T, ch <-chan *device.StatsResponse) {
	t.Helper()
	synctest.Wait()
	select {
	case r, open := <-ch:
		t.Fatalf("got %+v (open: %v)", r, open)
	default:
	}
}

func TestStats_UseTheGroupNamesOfTheFingerprint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1", "b:1"), ill(sticks("ea60", "c:1"), "there is no tty"))
		_, _, ch := measured(t, w, meter(func(ids []string) (map[string]*device.DeviceStats, error) {
			all := map[string]*device.DeviceStats{"z:1": {}, "b:1": nil}
			for _, id := range ids {
				if id != "b:1" {
					all[id] = &device.DeviceStats{}
				}
			}
			return all, nil
		}))
		groups := nextStats(t, ch)
		must.SliceLen(t, 2, groups)
		must.Eq(t, "ea60", groups[0].Name)
		must.Eq(t, "ea60 (unhealthy)", groups[1].Name)
		must.Eq(t, "10c4", groups[0].Vendor)
		must.Eq(t, "zigbee", groups[0].Type)
		if i := groups[0].InstanceStats; len(i) != 1 || i["a:1"] == nil {
			t.Errorf("got %v", i)
		}
		i := groups[1].InstanceStats
		must.MapLen(t, 1, i)
		test.Eq(t, "there is no tty", *i["c:1"].Summary.StringVal)
	})
}

func TestStats_SendsImmediatelyAndEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		_, _, ch := measured(t, w, meter(func([]string) (map[string]*device.DeviceStats, error) {
			return map[string]*device.DeviceStats{"a:1": {}}, nil
		}))
		for range 3 {
			if s := nextStats(t, ch)[0].InstanceStats["a:1"]; !s.Timestamp.Equal(time.Now()) {
				t.Errorf("measured at %s", s.Timestamp)
			}
			noStats(t, ch)
			time.Sleep(5 * time.Second)
		}
	})
}

// Nomad's commands panic if a device's statistics have no Stats object (command/helper_devices.go). Nomad's API returns
// an error for a number that JSON can't represent.
func TestStats_AreCompleteAndEncodable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1", "b:1"))
		sick := &structs.StatObject{
			Attributes: map[string]*structs.StatValue{
				"nothing": nil, "nan": {FloatNumeratorVal: pointer.Of(math.NaN())}, "endless": {FloatNumeratorVal: pointer.Of(1.0),
					FloatDenominatorVal: pointer.Of(math.Inf(1))},
				"name\xff": {StringVal: pointer.Of("Caf\xe9"), Unit: "\xff", Desc: "\xff"},
			},
			Nested: map[string]*structs.StatObject{"nothing": nil,
				"power": {Attributes: map[string]*structs.StatValue{"mA": {IntNumeratorVal: pointer.Of(int64(100))}}}},
		}
		_, _, ch := measured(t, w, meter(func([]string) (map[string]*device.DeviceStats, error) {
			return map[string]*device.DeviceStats{"a:1": {}, "b:1": {Stats: sick,
				Summary: &structs.StatValue{IntNumeratorVal: pointer.Of(int64(7))}}}, nil
		}))
		i := nextStats(t, ch)[0].InstanceStats
		if a := i["a:1"]; a.Stats == nil || a.Summary == nil || *a.Summary.StringVal != "healthy" {
			t.Errorf("got %+v", a)
		}
		b := i["b:1"]
		if *b.Summary.IntNumeratorVal != 7 || len(b.Stats.Attributes) != 1 ||
			b.Stats.Attributes["name\uFFFD"].Unit != "\uFFFD" || b.Stats.Attributes["name\uFFFD"].Desc != "\uFFFD" ||
			*b.Stats.Attributes["name\uFFFD"].StringVal != "Caf\uFFFD" || len(b.Stats.Nested) != 1 ||
			b.Stats.Nested["power"].Attributes["mA"] == nil {
			t.Errorf("got %+v", b.Stats)
		}
		test.MapLen(t, 4, sick.Attributes, test.Sprint("the plugin's own object was changed"))
	})
}

func TestStats_FailureSkipsPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		calls := 0
		_, log, ch := measured(t, w, meter(func([]string) (map[string]*device.DeviceStats, error) {
			switch calls++; {
			case calls <= 10:
				return nil, errors.New("no such attribute")
			case calls <= 20:
				panic("index out of range")
			}
			return map[string]*device.DeviceStats{"a:1": {}}, nil
		}))
		time.Sleep(97 * time.Second)
		noStats(t, ch)
		for _, line := range []string{"failed to measure devices: no such attribute",
			"failed to measure devices: panic: index out of range"} {
			test.Eq(t, 1, log.count(line), test.Sprintf("no single %q in\n%s", line, log))
		}
		time.Sleep(5 * time.Second)
		nextStats(t, ch)
		test.Eq(t, 1, log.count("measuring devices works again"), test.Sprintf("got\n%s", log))
	})
}

func TestStats_SendNothingWithoutDevicesOrReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, ch := measured(t, &world{}, meter(func([]string) (map[string]*device.DeviceStats,
			error) {
			panic("asked of nothing")
		}))
		time.Sleep(time.Minute)
		noStats(t, ch)
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		p, _ := start(t, supplied(w))
		next(t, stream(t, p))
		ch, err := p.Stats(t.Context(), 0)
		must.NoError(t, err)
		time.Sleep(time.Minute)
		noStats(t, ch)
	})
}

// An interval of zero means that the agent's configuration sets no interval.
func TestStats_DefaultIntervalIsOneSecond(t *testing.T) {
	for _, interval := range []time.Duration{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{}
			w.plug(sticks("ea60", "a:1"))
			s := supplied(w)
			s.stats = meter(func([]string) (map[string]*device.DeviceStats, error) {
				return map[string]*device.DeviceStats{"a:1": {}}, nil
			})
			p, _ := start(t, s)
			next(t, stream(t, p))
			ch, err := p.Stats(t.Context(), interval)
			must.NoError(t, err)
			nextStats(t, ch)
			noStats(t, ch)
			time.Sleep(time.Second)
			nextStats(t, ch)
		})
	}
}

func TestStats_EndOnlyWithTheirContext(t *testing.T) {
	for reader, take := range map[string]bool{"that reads": true, "that never reads": false} {
		t.Run("with an agent "+reader, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
				w := &world{}
				w.plug(sticks("ea60", "a:1"))
				s := supplied(w)
				s.stats = meter(func([]string) (map[string]*device.DeviceStats, error) {
					return map[string]*device.DeviceStats{"a:1": {}}, nil
				})
				p, _ := start(t, s)
				next(t, stream(t, p))
				ctx, cancel := context.WithCancel(t.Context())
				ch, err := p.Stats(ctx, -time.Second)
				must.NoError(t, err)
				if take {
					nextStats(t, ch)
				}
				time.Sleep(time.Hour)
				cancel()
				synctest.Wait()
				r, open := <-ch
				test.False(t, open, test.Sprintf("got %+v from an ended stream", r))
			})
		})
	}
}
