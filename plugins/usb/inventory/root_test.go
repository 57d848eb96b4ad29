// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/usb/config"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// A user who can replace the directory of the option root chooses the files that tasks get as nodes. One who can
// replace shadow_dir chooses where the plugin makes and removes files as uid 0.
func TestRootOption_RefusesADirectoryThatOtherUsersCanReplace(t *testing.T) {
	for _, option := range []string{"root", "shadow_dir"} {
		above := filepath.Join(t.TempDir(), "above")
		must.NoError(t, errors.Join(os.Mkdir(above, 0o755), os.Chmod(above, 0o777)))
		for _, path := range []string{above, above + "/missing"} {
			_, err := decode(t, option+` = "`+path+`"`)
			test.ErrorContains(t, err, option+": other users may write to "+above)
		}
	}
}

// The directory becomes writable for other users only after the agent has started.
func TestRootOption_IsNotReadAfterItBecomesReplaceable(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	m.reserve("10c4:ea60:0001")
	m.must(os.Chmod(m.root, 0o777))
	defer os.Chmod(m.root, 0o755)
	want := "root: other users may write to " + m.root
	groups, err := m.List(t.Context())
	test.ErrorContains(t, err, want, test.Sprintf("Scan: got %v", groups))
	r, err := m.Reserve(t.Context(), []string{"10c4:ea60:0001"})
	test.ErrorContains(t, err, want, test.Sprintf("Reserve: got %v", r))
	s, err := m.Stats(t.Context(), []string{"10c4:ea60:0001"})
	test.ErrorContains(t, err, want, test.Sprintf("Stats: got %v", s))
}

func TestRootOption_LinksOutOfTheDirectoryAreNotFollowed(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	for name, target := range map[string]string{"absolute": secret, "relative": strings.Repeat("../", 20) + secret} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, zigbeeBlock)
			m.must(os.WriteFile(secret, []byte("the host's\n"), 0o600))
			m.plug("10c4:ea60", "0001", "1-1")
			product := m.root + "/sys/bus/usb/devices/1-1/product"
			m.must(os.Remove(product))
			m.must(os.Symlink(target, product))
			for name, a := range m.scan()[0].Attributes {
				if text, ok := a.GetString(); ok && strings.Contains(text, "the host's") {
					t.Errorf("attribute %s is %q", name, text)
				}
			}
		})
	}
}

// The plugin runs as uid 0: if it made a node with a number from the simulation, that could be a disk's number, and the
// task would get the disk.
func TestRootOption_SimulatedDeviceNumberMakesNoNode(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.must(os.Remove(filepath.Join(m.root, p.Nodes[0])))
	events, err := filepath.Glob(m.root + "/sys/devices/*/*/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0/uevent")
	must.NoError(t, err)
	must.SliceLen(t, 1, events)
	for _, number := range []string{"MAJOR=8\nMINOR=0\n", "MAJOR=4104\nMINOR=0\n"} {
		m.must(os.WriteFile(events[0], []byte(number+"DEVNAME=ttyUSB0\n"), 0o600))
		test.StrContains(t, m.scan()[0].Devices[0].Problem, "its device nodes can't be made: ",
			test.Sprintf("with %q it", number))
		_, err := os.Lstat(m.nodes + "/10c4-ea60-0001/tty")
		test.ErrorIs(t, err, os.ErrNotExist, test.Sprintf("with %q a node was made", number))
	}
}

func TestRootOption_InvalidDeviceNumbersAreIgnored(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	events, _ := filepath.Glob(m.root + "/sys/devices/*/*/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0/uevent")
	for _, number := range []string{"-1", "4294967304", "8 ", "0x8", ""} {
		m.must(os.WriteFile(events[0], []byte("MAJOR="+number+"\nMINOR=0\nDEVNAME=ttyUSB0\n"), 0o600))
		devices, err := sysfs.Scan(os.DirFS(m.root))
		m.must(err)
		n := devices[0].Nodes[1]
		test.NotEq(t, 8, n.Major, test.Sprintf("%q was read as", number))
	}
}

// The plugin refuses an option root that is not a simulation, both when the agent starts and later at a scan. Such an
// option may be left over in a configuration.
func TestRootOption_MustNameASimulation(t *testing.T) {
	other := t.TempDir()
	must.NoError(t, os.MkdirAll(other+"/sys/bus/usb/devices", 0o755))
	nodes := fmt.Sprintf("\nshadow_dir = %q", filepath.Join(t.TempDir(), "nodes"))
	for config, want := range map[string]string{
		fmt.Sprintf("root = %q", t.TempDir()):    "whose nodes can't be in /dev/nomad-usb",
		fmt.Sprintf("root = %q", other) + nodes:  "is not a simulation: ",
		fmt.Sprintf("root = %q", "/dev") + nodes: "is not a simulation: ",
	} {
		_, err := decode(t, config)
		test.ErrorContains(t, err, want, test.Sprint(config))
	}

	m := newMachine(t, zigbeeBlock) // another user makes the directory after the agent has started
	m.must(os.CopyFS(m.root, os.DirFS(other)))
	groups, err := m.List(t.Context())
	test.ErrorContains(t, err, "is not a simulation: ", test.Sprintf("got %v", groups))
}

// OpenTree finds no directory. Another user makes it afterwards.
func TestRootOption_DirectoryMadeAfterOpeningIsIgnored(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	tree, done, err := config.OpenTree(root)
	must.NoError(t, err)
	defer done()
	must.NoError(t, os.Mkdir(root, 0o777))
	must.NoError(t, os.Symlink("/etc/passwd", filepath.Join(root, "serial")))
	_, err = fs.ReadFile(tree, "serial")
	test.ErrorIs(t, err, fs.ErrNotExist)
}

// Without this warning, an operator could not see why the plugin publishes none of the machine's devices.
func TestRootOption_WarnsAboutASimulation(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	want := "root is " + m.root + ": the published devices are a simulation, and not this machine's devices"
	for range 2 {
		m.start(zigbeeBlock)
		m.scan()
		m.scan()
	}
	n := strings.Count(m.log.String(), want)
	test.Eq(t, 2, n, test.Sprintf("in two starts it warns %d times: %s", n, m.log))
	m = newMachine(t, "")
	m.real(zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	test.Eq(t, "", m.log.String(), test.Sprintf("on a real machine it logs %s", m.log))
}

// The kernel gives the number of a closed terminal to the next terminal, which may be a login session of root. A task
// whose stick had the number must not get that session.
func TestRootOption_TaskNeverGetsAReusedTerminal(t *testing.T) {
	m := newMachine(t, "device \"zigbee\" {\nid = \"10c4:ea60\"\nmode = \"0666\"\n}")
	p := m.plug("10c4:ea60", "0001", "1-1")
	session := m.plug("10c4:ea60", "0002", "1-2") // its terminal stands for a user's session
	terminal, err := os.Readlink(filepath.Join(m.root, session.Nodes[0]))
	m.must(err)
	m.must(os.Chmod(terminal, 0o620))
	m.must(os.Remove(m.root + "/.simulate/1-2"))
	defer os.WriteFile(m.root+"/.simulate/1-2", nil, 0o600)
	groups := m.scan()
	for _, d := range groups[0].Devices {
		test.Eq(t, (d.Problem == ""), d.ID == p.ID+":0001", test.Sprintf("%s: %q", d.ID, d.Problem))
	}
	if info, err := os.Stat(terminal); err != nil || info.Mode().Perm() != 0o620 {
		t.Errorf("the terminal is %v now, %v", info.Mode(), err)
	}
	m.wantNodes("10c4-ea60-0001/tty", "10c4-ea60-0001/usb")
}
