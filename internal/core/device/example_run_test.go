// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/schema/schematest"
)

func init() {
	device.ExampleMains = map[string]func(){
		"serial":  func() { device.Main(hastySerial) },
		"scratch": func() { device.Main(hastyScratch) },
	}
}

// hastySerial is the example with shorter times, for tests.
var hastySerial = device.Plugin[Config]{
	Name: serial.Name,
	New:  func(c Config, _ hclog.Logger) (device.Instance, error) { return hastyPorts{ports{c.Nodes}}, nil },
}

type hastyPorts struct{ ports }

func (hastyPorts) Options() device.Options {
	return device.Options{Period: 300 * time.Millisecond, Grace: time.Second}
}

// host makes serial ports that a test can unplug and plug in again.
func host(t *testing.T) (config string, unplug, plug func()) {
	dir := t.TempDir()
	for _, name := range []string{"ttyS0", "ttyS1"} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	move := func(from, to string) func() {
		return func() {
			test.NoError(t, os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)))
		}
	}
	return `nodes = "` + dir + `/ttyS*"`, move("ttyS1", "away"), move("away", "ttyS1")
}

func TestExample_IsACompletePlugin(t *testing.T) {
	config, unplug, plug := host(t)
	m := conformance.StartManager(t, device.PluginBinary(t, "serial", config))
	const soon = 30 * time.Second // enough even on a busy machine
	m.Want("host/serial/port: ttyS0 ttyS1", soon)
	r, err := m.Reserve("host/serial/port", "ttyS1")
	must.NoError(t, err, must.Sprintf("got %+v", r))
	must.Eq(t, "ttyS1", r.Envs["SERIAL_PORTS"], must.Sprintf("got %+v", r))
	test.Eq(t, "/dev/ttyS1", r.Devices[0].TaskPath, test.Sprintf("got %+v", r))
	unplug()
	m.Want("host/serial/port: ttyS0 ttyS1(unplugged)", soon)
	plug()
	m.Want("host/serial/port: ttyS0 ttyS1", soon)
}

func TestExample_Conforms(t *testing.T) {
	config, unplug, plug := host(t)
	conformance.Device{
		Plugin: func(ctx context.Context, log hclog.Logger) nomad.DevicePlugin {
			return device.New(ctx, log, hastySerial)
		},
		Config: config, Unplug: unplug, Plug: plug,
	}.Test(t)
}

func TestExample_MatchesThePage(t *testing.T) {
	const file = "example_test.go"
	schematest.Source(t, "../../../docs/develop/device.md", "internal/core/device/"+file, file)
}
