// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/internal/core/testsupport/usbsim"
	"github.com/outrider-dev/outrider/plugins/usb/inventory"
)

// machine is a test with a simulated machine. root is the simulation's directory, and nodes the shadow_dir.
type machine struct {
	*testing.T
	root, nodes string
}

// newMachine returns a machine without USB devices.
func newMachine(t *testing.T) *machine {
	dir := t.TempDir()
	return &machine{T: t, root: filepath.Join(dir, "sim"), nodes: filepath.Join(dir, "nodes")}
}

func (m *machine) must(err error) {
	m.Helper()
	must.NoError(m.T, err)
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

func (m *machine) list() string {
	m.Helper()
	var out bytes.Buffer
	m.must(list(&out, m.root))
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 79 && !strings.Contains(line, m.root) &&
			!strings.Contains(line, "/by-id/") {
			m.Errorf("line of %d columns: %s", n, line)
		}
	}
	return out.String()
}

// check writes a configuration and checks it.
func (m *machine) check(config string) (string, error) {
	m.Helper()
	path := filepath.Join(m.TempDir(), "agent.hcl")
	config = strings.NewReplacer(
		`root = "ROOT"`, fmt.Sprintf("root = %q\nshadow_dir = %q\n", m.root, m.nodes),
		`"root": "ROOT"`, fmt.Sprintf(`"root": %q, "shadow_dir": %q`, m.root, m.nodes),
	).Replace(config)
	m.must(os.WriteFile(path, []byte(config), 0o644))
	var out bytes.Buffer
	err := check(&out, path)
	return strings.ReplaceAll(out.String(), path, "agent.hcl"), err
}

func wantLines(t *testing.T, got string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		test.StrContains(t, "\n"+got, "\n"+line+"\n", test.Sprintf("no line %q in\n%s", line, got))
	}
}

func TestList_ShowsDevicesAndBlocks(t *testing.T) {
	m := newMachine(t)
	toCopy := func(got string) {
		t.Helper()
		_, block, _ := strings.Cut(got, "    device")
		block, _, _ = strings.Cut(block, "\n\n")
		_, err := m.check("device" + block)
		test.NoError(t, err, test.Sprintf("the block to copy is wrong: %v\n%s", err, got))
	}
	test.StrContains(t, m.list(), "this machine has no USB", test.Sprint("without a bus"))
	toCopy(m.list())
	first := m.plug("10c4:ea60", "0001", "1-1")
	got := m.list()
	wantLines(t, got,
		"10c4:ea60  Silicon Labs CP2102", "  serial   0001", "  port     1-1", "           pci-0000:00:14.0-usbv2-0:1",
		"  class    vendor-specific",
		"  nodes    /dev/bus/usb/001/004 usb", "           /dev/ttyUSB0         tty of cp210x, interface 0",
		"             /dev/serial/by-id/usb-Silicon_Labs_CP2102_0001-if00-port0",
		"  id       10c4:ea60:0001", `    device "cp2102" {`, `      id     = "10c4:ea60"`, `      serial = "0001"`,
		`      nodes  = ["usb", "tty"]`)
	m.must(first.Unplug())
	test.StrHasPrefix(t, "Nothing is plugged in except for hubs.\n", m.list(), test.Sprint("without a stick"))
	toCopy(m.list())
}

func TestList_BlockMatchesOnlyItsDevice(t *testing.T) {
	m := newMachine(t)
	m.plug("1a86:7523", "", "1-1")
	m.plug("1a86:7523", "", "1-2")
	m.plug("10c4:ea60", "A 1", "1-3")
	m.plug("10c4:ea60", "A 2", "1-4")
	m.plug("0403:6001", "same", "2-1")
	m.plug("0403:6001", "same", "2-2", "hidraw")
	var blocks strings.Builder
	for line := range strings.Lines(m.list()) {
		if strings.HasPrefix(line, "    ") && !strings.HasPrefix(line, "     /") && !strings.HasPrefix(line, "       ") {
			blocks.WriteString(line)
		}
	}
	path := filepath.Join(t.TempDir(), "config.hcl")
	text := fmt.Sprintf("root = %q\nshadow_dir = %q\n%s", m.root, m.nodes, &blocks)
	m.must(os.WriteFile(path, []byte(text), 0o600))
	c, err := loadConfig(path)
	m.must(err)
	instance, err := inventory.New(c, hclog.NewNullLogger())
	m.must(err)
	groups, err := instance.List(t.Context())
	m.must(err)
	must.Len(t, 6, groups, must.Sprint(text))
	for _, g := range groups {
		test.SliceLen(t, 1, g.Devices, test.Sprintf("%s has", g.Type))
	}
}

// A serial number may have any characters, even those that begin an expression in HCL.
func TestList_BlockEscapesSerial(t *testing.T) {
	for _, serial := range []string{"A${B", "${env.X}", "%{if}", `a"b`, `a\b`, "a*b?", "1624", "0x10", "ü ß", "$$",
		"a#b//c", "<<EOF"} {
		m := newMachine(t)
		p := m.plug("10c4:ea60", serial, "1-1")
		m.plug("10c4:ea60", "other", "1-2")
		_, block, _ := strings.Cut(m.list(), "    device")
		block, _, _ = strings.Cut(block, "\n\n")
		got, err := m.check("root = \"ROOT\"\ndevice" + block)
		if err != nil {
			t.Errorf("%q: %v\n%s", serial, err, block)
			continue
		}
		m.must(p.Unplug())
		without, _ := m.check("root = \"ROOT\"\ndevice" + block)
		must.StrNotContains(t, got, "no matching device is plugged in",
			must.Sprintf("%q: the block means\n%s\nand without it", serial, got))
		test.StrContains(t, without, "no matching device is plugged in",
			test.Sprintf("%q: the block means\n%s\nand without it", serial, got))
	}
}

func TestCheck_ShowsBlocksOfDevices(t *testing.T) {
	m := newMachine(t)
	m.plug("10c4:ea60", "0001", "1-1")
	m.plug("1a86:7523", "", "1-2")
	m.plug("1050:0407", "7", "1-3", "hidraw")
	m.plug("046d:c52b", "", "1-4", "hidraw")
	got, err := m.check(`
		client { enabled = true }
		plugin "raw_exec" {}
		plugin "nomad-device-usb" {
			config {
				root = "ROOT"
				device "a" { id = "10c4:*" }
				device "b" { id = "*:ea60" }
				device "c" {
					id     = "10c4:ea60"
					serial = "0002"
					names { tty = "/dev/zigbee" }
				}
				device "d" {
					id    = "1050:0407"
					nodes = ["tty"]
					path  = "/dev/zigbee"
				}
				device "e" {
					id     = "0403:6001"
					driver = "ftdi_sio"
				}
				device "f" {
					id   = "1a86:7523"
					port = "1-7"
				}
				exclude "mice" { id = "046d:*" }
			}
		}`)
	m.must(err)
	want := `agent.hcl: the configuration is valid.

device "a"
  10c4:ea60:0001
    Silicon Labs CP2102, /dev/ttyUSB0

device "b"
  no device: all that match belong to another block

device "c"
  no matching device is plugged in

device "d"
  1050:0407:7
    Silicon Labs CP2102, /dev/hidraw0
    unhealthy: no tty: its driver usbhid has made no such node

device "e"
  no matching device is plugged in

device "f"
  no matching device is plugged in

not published
  1a86:7523@pci-0000:00:14.0-usbv2-0:2
    Silicon Labs CP2102, /dev/ttyUSB1
  046d:c52b@pci-0000:00:14.0-usbv2-0:4
    Silicon Labs CP2102, /dev/hidraw1
    by exclude "mice"

note: no task can have both device "c" and device "d": both use the path /dev/zigbee in tasks
note: 10c4:ea60:0001 matches several devices: it belongs to "a", the first by name, and not to "b"
note: device "c": 10c4:ea60:0001 would match, but its serial is "0001"
note: device "f": 1a86:7523@pci-0000:00:14.0-usbv2-0:2 would match, but its port is "1-2", ` +
		`"pci-0000:00:14.0-usbv2-0:2", "pci-0000:00:14.0-usb-0:2"
`
	test.Eq(t, want, got, test.Sprintf("got\n%s\nwant", got))
}

func TestCheck_ReadsAnAgentsFileOrABareConfig(t *testing.T) {
	m := newMachine(t)
	m.plug("10c4:ea60", "0001", "1-1")
	for name, config := range map[string]string{
		"an agent's file": `plugin "nomad-device-usb" { config { root = "ROOT" device "z" { id = "10c4:ea60" } } }`,
		"an agent's file in JSON": `{"plugin": {"nomad-device-usb": {"config": {"root": "ROOT", "device": {"z": {"id": ` +
			`["10c4:ea60"]}}}}}}`,
		"several plugins in JSON": `{"plugin": [{"docker": {"config": {}}}, {"nomad-device-usb": {"config": [{"root": ` +
			`"ROOT", "device": [{"z": [{"id": "10c4:ea60"}]}]}]}}]}`,
		"a config block":      `config { root = "ROOT" device "z" { id = "10c4:ea60" } }`,
		"the block's content": `root = "ROOT" device "z" { id = "10c4:ea60" }`,
	} {
		t.Run(name, func(t *testing.T) {
			config = strings.NewReplacer(" root", "\nroot", " device", "\ndevice", " }", "\n}").Replace(config)
			if strings.HasPrefix(config, "{") {
				config = strings.ReplaceAll(config, "\n", " ")
			}
			got, err := m.check(config)
			m.must(err)
			wantLines(t, got, `device "z"`, "  10c4:ea60:0001")
		})
	}
}

func TestCheck_ReportsMistakes(t *testing.T) {
	m := newMachine(t)
	for name, c := range map[string]struct{ config, want, printed string }{
		"no such block": {`plugin "nomad-device-usbs" {}`, `has no plugin block "nomad-device-usb", only ` +
			`"nomad-device-usbs": use the name of the file in plugin_dir`, ""},
		"no plugin at all": {`client { enabled = true }`, `No argument or block type is named "client".`, ""},
		"an option misspelt": {`devise "z" { id = "10c4:ea60" }`, `Invalid label: No argument or block type is named ` +
			`"devise". Did you mean "device"?`, ""},
		"not HCL": {"device \"z\" {", `object expected closing RBRACE got: EOF`, ""},
		"one mistake": {"device \"z\" {\nid = 0x0658\n}", `device "z": id must be a string, but is the number ` +
			`1624 (0x0658): put it in quotes`, ""},
		"two mistakes": {"device \"y\" { idd = \"1\" }\ndevice \"z\" {\nid = 0x0658\n}",
			`the configuration has 2 mistakes`, `device "y": Invalid label: No argument or block type is named "idd". Did ` +
				`you mean "id"?`},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := m.check(c.config)
			must.Error(t, err, must.Sprintf("accepted: %s", out))
			test.StrHasSuffix(t, c.want, err.Error(), test.Sprintf("got  %v\nwant", err))
			if c.printed != "" {
				wantLines(t, out, c.printed)
			}
		})
	}
}

func TestCheck_ReportsBadShadowDir(t *testing.T) {
	m := newMachine(t)
	dir := t.TempDir()
	m.must(os.WriteFile(dir+"/precious", nil, 0o600))
	got, err := m.check(fmt.Sprintf("shadow_dir = %q\ndevice \"z\" { id = \"10c4:ea60\" }", dir))
	m.must(err)
	wantLines(t, got, "note: shadow_dir: no device nodes can be made for tasks: "+dir+" contains other files: use a "+
		"directory that is empty or missing")
}

func TestCheck_ReadsDirectory(t *testing.T) {
	m := newMachine(t)
	dir := t.TempDir()
	m.must(os.WriteFile(dir+"/a.hcl", []byte("client { enabled = true }"), 0o644))
	test.ErrorContains(t, check(new(bytes.Buffer), dir), "has no plugin block")
	m.must(os.WriteFile(dir+"/b.json", []byte(`{"plugin": {"nomad-device-usb": {"config": `+
		`{"root": "`+m.root+`", "shadow_dir": "`+m.nodes+`"}}}}`), 0o644))
	var out bytes.Buffer
	m.must(check(&out, dir))
	test.StrContains(t, out.String(), "note: nothing is published: add device blocks")
	for _, path := range []string{t.TempDir(), dir + "/none"} {
		test.Error(t, check(new(bytes.Buffer), path), test.Sprintf("%s accepted", path))
	}
}

// NixOS writes the configuration as JSON, with a labeled block as nested objects.
func TestCheck_ReadsJSON(t *testing.T) {
	m := newMachine(t)
	for config, want := range map[string]string{
		`{"config": [{"device": {"a": {"id": "10c4:ea60"}, "b": {"id": "1546:*"}}}]}`:     "\ndevice \"b\"\n  no matching",
		`{"config": [{"device": [{"a": {"id": "10c4:ea60"}}, {"b": {"id": "1546:*"}}]}]}`: "\ndevice \"b\"\n  no matching",
		`{"config": [{}]}`: "nothing is published",
		`{}`:               "nothing is published",
	} {
		file := filepath.Join(t.TempDir(), "nomad.json")
		m.must(os.WriteFile(file, []byte(`{"plugin": {"nomad-driver-x": {}, "nomad-device-usb": `+config+`}}`), 0o644))
		var out bytes.Buffer
		test.NoError(t, check(&out, file), test.Sprint(config))
		test.StrContains(t, out.String(), want, test.Sprint(config))
	}
}

func TestCommands_AreComplete(t *testing.T) {
	names := map[string]bool{}
	for _, c := range []plugin.Command{List, Check} {
		names[c.Name] = c.Help != "" && c.Run != nil
	}
	for _, name := range []string{"list", "check"} {
		test.True(t, names[name], test.Sprintf("no command %s", name))
	}
	for _, c := range []plugin.Command{List, Check} {
		test.ErrorIs(t, c.Run(t.Context(), []string{"-h"}), flag.ErrHelp, test.Sprintf("%s -h", c.Name))
	}
	for _, args := range [][]string{nil, {"a", "b"}, {"-x"}} {
		test.ErrorContains(t, Check.Run(t.Context(), args), "usage", test.Sprintf("check %v", args))
	}
}

func TestDocs_ConfigurationsAreValid(t *testing.T) {
	text, err := os.ReadFile("../../../docs/plugins/usb.md")
	must.NoError(t, err)
	m := newMachine(t)
	n := 0
	for _, block := range regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if !strings.HasPrefix(block[1], "plugin ") && !strings.HasPrefix(block[1], "device ") || strings.Contains(block[1],
			"constraint") {
			continue // an example of a job, not a configuration
		}
		n++
		if _, err := m.check(block[1]); err != nil {
			t.Errorf("%v:\n%s", err, block[1])
		}
	}
	test.False(t, n < 3, test.Sprintf("%d configurations found", n))
}
