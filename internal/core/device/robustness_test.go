// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// These tests cover mistakes that the USB example in Nomad's documentation of device plugins makes. The tests in
// plugins/usb cover mistakes that only a plugin for USB can make.

func TestFingerprint_MissingReaderBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		p, _ := start(t, supplied(w))
		stream(t, p) // the test never reads this stream
		time.Sleep(time.Minute)
		w.plug(sticks("ea60", "a:1", "b:1"))
		time.Sleep(time.Minute)
		synctest.Wait()
		before := time.Now()
		if _, err := p.Reserve([]string{"b:1"}); err != nil || time.Since(before) > 0 {
			t.Errorf("got %v after %s", err, time.Since(before))
		}
	})
}

func TestFingerprint_SendsAListWhenADeviceReplacesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		s := supplied(w)
		s.Grace = 0
		p, _ := start(t, s)
		ch := stream(t, p)
		next(t, ch)
		w.plug(sticks("ea60", "b:1"))
		time.Sleep(time.Minute)
		want(t, next(t, ch), "ea60[b:1]=b:1")
		time.Sleep(time.Hour)
		silent(t, ch)
	})
}

func TestFingerprint_SendsChangedHealthAndAttributes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		p, _ := start(t, supplied(w))
		ch := stream(t, p)
		next(t, ch)
		w.plug(ill(sticks("ea60", "a:1"), "there is no tty"))
		time.Sleep(time.Minute)
		want(t, next(t, ch), "ea60 (unhealthy)[a:1!there is no tty]=-")
		w.plug(ill(sticks("ea60", "a:1"), "its driver is not loaded"))
		time.Sleep(time.Minute)
		want(t, next(t, ch), "ea60 (unhealthy)[a:1!its driver is not loaded]=-")
		w.plug(sticks("ea60", "a:1"))
		time.Sleep(time.Minute)
		next(t, ch)
		w.plug(with(sticks("ea60", "a:1"), "usb_id", structs.NewStringAttribute("10c4:ea70")))
		time.Sleep(time.Minute)
		if g := nextGroups(t, ch); *g[0].Attributes["usb_id"].String != "10c4:ea70" {
			t.Errorf("got %v", g[0].Attributes)
		}
	})
}

func TestFingerprint_LocalityIsPCIAddressOrMissing(t *testing.T) {
	g := sticks("ea60", "a:1", "b:1")
	g.Devices[0].PCIBusID = "0000:00:14.0"
	found, _ := inspect([]Group{g})
	now, _ := ledger{}.enter(found, 0, time.Now())
	d := now.groups[0].Devices
	if d[0].HwLocality == nil || d[0].HwLocality.PciBusID != "0000:00:14.0" || d[1].HwLocality != nil {
		t.Errorf("got %+v, %+v", d[0].HwLocality, d[1].HwLocality)
	}
}

func TestStats_SkipsEmptyResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"))
		_, _, ch := measured(t, w, meter(func([]string) (map[string]*device.DeviceStats, error) { return nil, nil }))
		time.Sleep(time.Minute)
		noStats(t, ch)
	})
}

// This test calls Reserve during scans, for the race detector.
func TestReserve_IsSafeDuringScans(t *testing.T) {
	w := &world{}
	w.plug(sticks("ea60", "a:1"))
	s := supplied(w)
	s.Period, s.Settle = minPeriod, 0
	p, _ := start(t, s)
	ch := stream(t, p)
	<-ch
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				p.kick.Kick()
				_, err := p.Reserve([]string{"a:1"})
				test.NoError(t, err)
				r, err := p.Reserve(nil)
				test.Error(t, err, test.Sprintf("nothing was reserved with success: %+v", r))
			}
		})
	}
	all.Wait()
}

func TestFingerprint_ScansNothingAfterItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left
		w := &world{hang: make(chan struct{})}
		w.plug(sticks("ea60", "a:1"))
		p, _ := start(t, supplied(w))
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := p.Fingerprint(ctx)
		must.NoError(t, err)
		synctest.Wait() // until the first scan has begun
		cancel()
		close(w.hang)
		for r := range ch {
			t.Errorf("got %s", listing(r.Devices))
		}
		time.Sleep(time.Hour)
		n := w.scanned()
		test.Eq(t, 1, n, test.Sprintf("%d scans", n))
	})
}

func TestFingerprint_LogsNothingWithoutChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		w.plug(sticks("ea60", "a:1"), ill(sticks("ea60", "b:1"), "there is no tty"))
		p, log := start(t, supplied(w))
		next(t, stream(t, p))
		time.Sleep(24 * time.Hour)
		want(t, log.String(), "")
		w.set(func(w *world) { w.err = errors.New("no such file") })
		time.Sleep(24 * time.Hour)
		n := log.count("\n")
		test.Eq(t, 1, n, test.Sprintf("%d lines in\n%s", n, log))
	})
}
