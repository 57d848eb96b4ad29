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
	if err != nil {
		t.Fatal(err)
	}
	return p, log, ch
}

func nextStats(t *testing.T, ch <-chan *device.StatsResponse) []*device.DeviceGroupStats {
	t.Helper()
	synctest.Wait()
	select {
	case r, open := <-ch:
		if !open || r.Error != nil {
			t.Fatalf("the stream ended: %+v", r)
		}
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

func TestStats_UseNamesOfFingerprint(t *testing.T) {
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
		if len(groups) != 2 || groups[0].Name != "ea60" || groups[1].Name != "ea60 (unhealthy)" ||
			groups[0].Vendor != "10c4" || groups[0].Type != "zigbee" {
			t.Fatalf("got %+v", groups)
		}
		if i := groups[0].InstanceStats; len(i) != 1 || i["a:1"] == nil {
			t.Errorf("got %v", i)
		}
		if i := groups[1].InstanceStats; len(i) != 1 || *i["c:1"].Summary.StringVal != "there is no tty" {
			t.Errorf("got %v", i)
		}
	})
}

func TestStats_SendsAtOnceAndEachInterval(t *testing.T) {
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

// Nomad's commands panic without an object (command/helper_devices.go), and its API
// answers with an error to a number that JSON has not.
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
		if len(sick.Attributes) != 4 {
			t.Error("the plugin's own object was changed")
		}
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
			if log.count(line) != 1 {
				t.Errorf("no single %q in\n%s", line, log)
			}
		}
		time.Sleep(5 * time.Second)
		nextStats(t, ch)
		if log.count("measuring devices works again") != 1 {
			t.Errorf("got\n%s", log)
		}
	})
}

func TestStats_NoneWithoutDevicesOrReporter(t *testing.T) {
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
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		noStats(t, ch)
	})
}

// An interval of zero is one that an agent was not told.
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
			if err != nil {
				t.Fatal(err)
			}
			nextStats(t, ch)
			noStats(t, ch)
			time.Sleep(time.Second)
			nextStats(t, ch)
		})
	}
}

func TestStats_EndWithContextOnly(t *testing.T) {
	for reader, take := range map[string]bool{"that reads": true, "that never reads": false} {
		t.Run("with an agent "+reader, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // which fails if a goroutine is left
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
				if err != nil {
					t.Fatal(err)
				}
				if take {
					nextStats(t, ch)
				}
				time.Sleep(time.Hour)
				cancel()
				synctest.Wait()
				if r, open := <-ch; open {
					t.Errorf("got %+v from an ended stream", r)
				}
			})
		})
	}
}
