// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/hcl"
	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/internal/core/testsupport/usbsim"
	"github.com/outrider-dev/outrider/plugins/usb/config"
)

// machine is a test with a simulated machine, whose / is root, and the plugin's inventory of this machine.
type machine struct {
	*testing.T
	*inventory
	root, nodes string
	log         *output
}

// newMachine returns a machine without sticks. text is the plugin's configuration, without root and shadow_dir.
func newMachine(t *testing.T, text string) *machine {
	t.Helper()
	m := &machine{T: t, root: filepath.Join(t.TempDir(), "sim"), log: &output{}}
	m.nodes = filepath.Join(filepath.Dir(m.root), "nodes")
	m.start(text)
	return m
}

// start replaces the inventory by a new one, as a restart of the plugin does. text is as for newMachine.
func (m *machine) start(text string) {
	m.Helper()
	c, err := decode(m.T, fmt.Sprintf("root = %q\nshadow_dir = %q\n%s", m.root, m.nodes, text))
	m.must(err)
	i, err := New(c, hclog.New(&hclog.LoggerOptions{Output: m.log, Level: hclog.Trace}))
	m.must(err)
	m.inventory = i.(*inventory)
}

func decode(t *testing.T, text string) (config.Config, error) {
	t.Helper()
	var body map[string]any
	must.NoError(t, hcl.Decode(&body, text))
	return schema.Of[config.Config]().DecodeAgent(body)
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// plug plugs in a stick, without a serial number if serial is empty.
func (m *machine) plug(id, serial, port string, functions ...string) *usbsim.Plugged {
	m.Helper()
	p, err := usbsim.Plug(m.root, usbsim.Stick{ID: id, Serial: serial, Port: port, Manufacturer: "Silicon Labs",
		Product: "CP2102", Functions: functions})
	m.must(err)
	m.Cleanup(func() { m.must(p.Unplug()) })
	return p
}

func (m *machine) scan() []device.Group {
	m.Helper()
	groups, err := m.List(m.Context())
	m.must(err)
	slices.SortFunc(groups, func(a, b device.Group) int {
		return strings.Compare(a.Vendor+"/"+a.Type+"/"+a.Name, b.Vendor+"/"+b.Type+"/"+b.Name)
	})
	return groups
}

// published scans, and returns a line for each group and its devices, such as "10c4/zigbee/ea60 10c4:ea60:0001".
func (m *machine) published() (all []string) {
	m.Helper()
	for _, g := range m.scan() {
		line := g.Vendor + "/" + g.Type + "/" + g.Name
		for _, d := range g.Devices {
			line += " " + d.ID
			if d.Problem != "" {
				line += " (" + d.Problem + ")"
			}
		}
		all = append(all, line)
	}
	return all
}

func (m *machine) wantPublished(want ...string) {
	m.Helper()
	if got := m.published(); !slices.Equal(got, want) {
		m.Errorf("published are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (m *machine) reserve(ids ...string) *nomad.ContainerReservation {
	m.Helper()
	r, err := m.Reserve(m.Context(), ids)
	m.must(err)
	return r
}

// wantNodes fails the test unless these are all shadow nodes, by paths such as "10c4-ea60-0001/tty".
func (m *machine) wantNodes(want ...string) {
	m.Helper()
	got, err := filepath.Glob(m.nodes + "/*/*")
	m.must(err)
	for i := range got {
		got[i], _ = filepath.Rel(m.nodes, got[i])
	}
	if !slices.Equal(got, want) {
		m.Errorf("nodes are %q, want %q", got, want)
	}
}

// output is a bytes.Buffer that several goroutines may use.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

const zigbeeBlock = `device "zigbee" { id = "10c4:ea60" }`

func (m *machine) entries() (names []string) {
	entries, _ := os.ReadDir(m.nodes)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
