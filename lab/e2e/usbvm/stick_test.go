// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbvm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/vm/gadget"
)

// sticks are the devices of the tests. The key is the device type in config.
var sticks = map[string]gadget.Device{
	"written": serial(0x0103, "W1"),
	"key": {Vendor: 0x1d6b, Product: 0x0104, Serial: "KEY1", Manufacturer: "Outrider", Name: "Key",
		Functions: []gadget.Function{gadget.Keyboard()}},
	"swapped": serial(0x0109, "S1"),
}

func serial(product uint16, number string) gadget.Device {
	return gadget.Device{Vendor: 0x1d6b, Product: product, Serial: number, Manufacturer: "Outrider", Name: "Stick",
		Functions: []gadget.Function{gadget.ACM()}}
}

// id returns the plugin's ID for a stick with a serial number.
func id(kind string) string {
	d := sticks[kind]
	return fmt.Sprintf("%04x:%04x:%s", d.Vendor, d.Product, d.Serial)
}

// stick is a gadget with the bytes received at its other end.
type stick struct {
	*gadget.Gadget
	port int

	mu  sync.Mutex // guards out
	out bytes.Buffer
}

// newStick makes a stick for a port, without plugging it in. The end of the test removes the stick.
func newStick(t *testing.T, kind string, port int, d gadget.Device) *stick {
	t.Helper()
	g, err := gadget.New(fmt.Sprintf("%s-%d", kind, port), d)
	must.NoError(t, err)
	s := &stick{Gadget: g, port: port}
	done := make(chan struct{})
	var listeners sync.WaitGroup
	for _, far := range g.Far() {
		listeners.Go(func() { s.listen(far, done) })
	}
	t.Cleanup(func() {
		close(done)
		listeners.Wait()
		test.NoError(t, g.Close())
	})
	return s
}

// listen collects the bytes that arrive at far, the other end of the stick. Unplugging the stick hangs up far, so
// listen opens it again.
func (s *stick) listen(far string, done chan struct{}) {
	for {
		if f, err := gadget.Open(far); err == nil {
			s.read(f, done)
			f.Close()
		}
		select {
		case <-done:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *stick) read(f *os.File, done chan struct{}) {
	b := make([]byte, 1024)
	for {
		f.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := f.Read(b)
		s.mu.Lock()
		s.out.Write(b[:n])
		s.mu.Unlock()
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func (s *stick) plug(t *testing.T) {
	t.Helper()
	must.NoError(t, s.Plug(s.port))
}

func (s *stick) unplug(t *testing.T) {
	t.Helper()
	must.NoError(t, s.Unplug())
}

// hearsAnew waits until the stick has received want from a write after this call.
func (s *stick) hearsAnew(t *testing.T, want string) {
	t.Helper()
	before := len(s.heard())
	testsupport.Within(t, time.Minute, func() error {
		if got := s.heard()[before:]; strings.Count(got, want) < 2 { // the first may be from a write before this call
			return fmt.Errorf("received only %q since then", got)
		}
		return nil
	})
}

// heard returns the bytes received at the other end so far.
func (s *stick) heard() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

func (s *stick) hears(t *testing.T, want string) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		if got := s.heard(); !strings.Contains(got, want) {
			return fmt.Errorf("received %q at the other end, want %q", got, want)
		}
		return nil
	})
}
