package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// What is below root becomes nodes of tasks, and what is below shadow_dir is made and
// removed by root.
func TestRoot_RefusesReplaceableDirectory(t *testing.T) {
	for _, option := range []string{"root", "shadow_dir"} {
		above := filepath.Join(t.TempDir(), "above")
		if err := errors.Join(os.Mkdir(above, 0o755), os.Chmod(above, 0o777)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{above, above + "/missing"} {
			_, err := decode(t, option+` = "`+path+`"`)
			if want := option + ": others may write to " + above; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	}
}

// The agent has started when the directory is opened to others.
func TestRoot_StopsReadingReplaceableRoot(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	m.reserve("10c4:ea60:0001")
	m.must(os.Chmod(m.root, 0o777))
	defer os.Chmod(m.root, 0o755)
	want := "root: others may write to " + m.root
	if groups, err := m.List(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Scan: got %v, %v", groups, err)
	}
	if r, err := m.Reserve(t.Context(), []string{"10c4:ea60:0001"}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Reserve: got %v, %v", r, err)
	}
	if s, err := m.Stats(t.Context(), []string{"10c4:ea60:0001"}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Stats: got %v, %v", s, err)
	}
}

func TestRoot_FollowsNoLinkOut(t *testing.T) {
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

// Root makes the node: with the number of a disk it would be the disk.
func TestRoot_SimulatedNumberMakesNoNode(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	p := m.plug("10c4:ea60", "0001", "1-1")
	m.must(os.Remove(filepath.Join(m.root, p.Nodes[0])))
	events, err := filepath.Glob(m.root + "/sys/devices/*/*/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0/uevent")
	if err != nil || len(events) != 1 {
		t.Fatalf("got %v, %v", events, err)
	}
	for _, number := range []string{"MAJOR=8\nMINOR=0\n", "MAJOR=4104\nMINOR=0\n"} {
		m.must(os.WriteFile(events[0], []byte(number+"DEVNAME=ttyUSB0\n"), 0o600))
		if problem := m.scan()[0].Devices[0].Problem; !strings.Contains(problem, "its device nodes can't be made: ") {
			t.Errorf("with %q it is %q", number, problem)
		}
		if _, err := os.Lstat(m.nodes + "/10c4-ea60-0001/tty"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("with %q there is a node: %v", number, err)
		}
	}
}

func TestRoot_RefusesBadNumbers(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	events, _ := filepath.Glob(m.root + "/sys/devices/*/*/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0/uevent")
	for _, number := range []string{"-1", "4294967304", "8 ", "0x8", ""} {
		m.must(os.WriteFile(events[0], []byte("MAJOR="+number+"\nMINOR=0\nDEVNAME=ttyUSB0\n"), 0o600))
		devices, err := sysfs.Scan(os.DirFS(m.root))
		m.must(err)
		if n := devices[0].Nodes[1]; n.Major == 8 {
			t.Errorf("%q was read as %d", number, n.Major)
		}
	}
}

// A root that was forgotten in a configuration, or is another machine's, is an error
// when the agent starts, and not nodes of tasks.
func TestRoot_MustBeSimulation(t *testing.T) {
	other := t.TempDir()
	if err := os.MkdirAll(other+"/sys/bus/usb/devices", 0o755); err != nil {
		t.Fatal(err)
	}
	nodes := fmt.Sprintf("\nshadow_dir = %q", filepath.Join(t.TempDir(), "nodes"))
	for config, want := range map[string]string{
		fmt.Sprintf("root = %q", t.TempDir()):    "whose nodes can't be in /dev/nomad-usb",
		fmt.Sprintf("root = %q", other) + nodes:  "is no simulation: ",
		fmt.Sprintf("root = %q", "/dev") + nodes: "is no simulation: ",
	} {
		if _, err := decode(t, config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", config, err, want)
		}
	}

	m := newMachine(t, zigbeeBlock) // made by somebody else after the agent has started
	m.must(os.CopyFS(m.root, os.DirFS(other)))
	if groups, err := m.List(t.Context()); err == nil || !strings.Contains(err.Error(), "is no simulation: ") {
		t.Errorf("got %v, %v", groups, err)
	}
}

// Without events and sticks nothing else would say why a node has no devices.
func TestRoot_WarnsOfSimulation(t *testing.T) {
	m := newMachine(t, zigbeeBlock)
	want := "root is " + m.root + ": what is published is a simulation, and not this machine's devices"
	for range 2 {
		m.start(zigbeeBlock)
		m.scan()
		m.scan()
	}
	if n := strings.Count(m.log.String(), want); n != 2 {
		t.Errorf("in two starts it says so %d times: %s", n, m.log)
	}
	m = newMachine(t, "")
	m.real(zigbeeBlock)
	m.plug("10c4:ea60", "0001", "1-1")
	m.scan()
	if m.log.String() != "" {
		t.Errorf("of a machine it says %s", m.log)
	}
}

// The kernel gives a terminal's number to whoever opens the next, such as root who logs
// in, whose terminal must not become the task's.
func TestRoot_IgnoresReusedTerminal(t *testing.T) {
	m := newMachine(t, "device \"zigbee\" {\nid = \"10c4:ea60\"\nmode = \"0666\"\n}")
	p := m.plug("10c4:ea60", "0001", "1-1")
	session := m.plug("10c4:ea60", "0002", "1-2") // which is plugged out of another simulation
	terminal, err := os.Readlink(filepath.Join(m.root, session.Nodes[0]))
	m.must(err)
	m.must(os.Chmod(terminal, 0o620))
	m.must(os.Remove(m.root + "/.simulate/1-2"))
	defer os.WriteFile(m.root+"/.simulate/1-2", nil, 0o600)
	groups := m.scan()
	for _, d := range groups[0].Devices {
		if ours := d.ID == p.ID.String()+":0001"; ours != (d.Problem == "") {
			t.Errorf("%s: %q", d.ID, d.Problem)
		}
	}
	if info, err := os.Stat(terminal); err != nil || info.Mode().Perm() != 0o620 {
		t.Errorf("the terminal is %v now, %v", info.Mode(), err)
	}
	m.wantNodes("10c4-ea60-0001/tty", "10c4-ea60-0001/usb")
}
