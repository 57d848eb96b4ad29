// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package conformance has the tables of cases that every driver and every device
// plugin must pass, and the parts of a Nomad agent that are needed to run them. It is
// for tests, and for mage conformance; no plugin is linked with it.
package conformance

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/devicemanager"
	"github.com/hashicorp/nomad/client/devicemanager/state"
	"github.com/hashicorp/nomad/helper/pluginutils/loader"
	"github.com/hashicorp/nomad/helper/pluginutils/singleton"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/nomad/structs/config"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// patience is how long a test waits for an event that must come, on a busy machine.
const patience = time.Minute

// Binary is a plugin as an executable file that an agent finds.
type Binary struct {
	// Name is the name of the file, and of the plugin block in the agent's configuration.
	Name string

	// Exe is the program, and Env what it needs besides the test's own environment, so
	// that a test binary can be the plugin too.
	Exe string
	Env map[string]string

	// Config is HCL: the content of the plugin's config block.
	Config string
}

// Manager is the part of a Nomad agent that handles devices: its plugin loader and its
// device manager.
type Manager struct {
	t       *testing.T
	manager devicemanager.Manager
	log     lockedBuffer
	short   string // the plugin's own temporary directory, with its socket
	killed  int    // how many plugins were killed; each leaves its socket

	mu      sync.Mutex
	devices []*structs.NodeDeviceResource
	updates int
	unseen  []string // the lists of devices since the one that Want found last
	state   *state.PluginState
	changed chan struct{} // closed at an update
}

// StartManager starts a manager with one plugin. When the test ends it is shut down as an
// agent does it, and no process and no socket may be left.
func StartManager(t *testing.T, b Binary) *Manager {
	t.Helper()
	m, err := newManager(t, b)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// RefuseManager returns the error with which an agent refuses to start with this plugin.
func RefuseManager(t *testing.T, b Binary) string {
	t.Helper()
	m, err := newManager(t, b)
	if err == nil {
		t.Fatal("the agent starts")
	}
	for _, pid := range m.processes() { // an agent ends here, and its plugins with it
		m.kill(pid)
	}
	return err.Error()
}

func newManager(t *testing.T, b Binary) (*Manager, error) {
	t.Helper()
	m := &Manager{t: t, changed: make(chan struct{})}
	dir := t.TempDir()
	if err := writeWrapper(filepath.Join(dir, b.Name), b.Exe, b.Env); err != nil {
		t.Fatal(err)
	}
	var err error
	if m.short, err = os.MkdirTemp("", "oc"); err != nil { // a socket's path may have 107 bytes (unix(7))
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", m.short)
	t.Cleanup(func() {
		for _, pid := range m.processes() {
			t.Errorf("process %d is left", pid)
			m.kill(pid)
		}
		// go-plugin kills a plugin that has not ended 2 s after it was asked to (client.go, Kill)
		killed := m.killed + strings.Count(m.Log(), "plugin failed to exit gracefully")
		if left, _ := os.ReadDir(m.short); len(left) > killed {
			t.Errorf("left in the temporary directory: %v", left)
		}
		os.RemoveAll(m.short)
		if t.Failed() {
			t.Logf("the agent's log:\n%s", m.Log())
		}
	})
	parsed, err := parseHCL(b.Config)
	if err != nil {
		t.Fatal(err)
	}
	logger := hclog.New(&hclog.LoggerOptions{Output: &m.log, Level: hclog.Trace})
	catalog, err := loader.NewPluginLoader(&loader.PluginLoaderConfig{
		Logger: logger, PluginDir: dir, SupportedVersions: loader.AgentSupportedApiVersions,
		Configs: []*config.PluginConfig{{Name: b.Name, Config: parsed}},
	})
	if err != nil {
		return m, err
	}
	manager := devicemanager.New(&devicemanager.Config{
		Logger: logger, Loader: singleton.NewSingletonLoader(logger, catalog), PluginConfig: &base.AgentConfig{},
		Updater: m.update, StatsInterval: 200 * time.Millisecond, State: m,
	})
	m.manager = manager
	manager.Run()
	t.Cleanup(func() {
		pid := m.PID()
		manager.Shutdown()
		WantEnd(t, pid, patience)
	})
	return m, nil
}

func (m *Manager) update(devices []*structs.NodeDeviceResource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices = devices
	m.updates++
	m.unseen = append(m.unseen, nodeDevices(devices))
	close(m.changed)
	m.changed = make(chan struct{})
}

// GetDevicePluginState is part of devicemanager.StateStorage.
func (m *Manager) GetDevicePluginState() (*state.PluginState, error) { return nil, nil }

// PutDevicePluginState is part of devicemanager.StateStorage.
func (m *Manager) PutDevicePluginState(s *state.PluginState) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = s
	return nil
}

// PID is the plugin's process, 0 if there is none.
func (m *Manager) PID() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil {
		return 0
	}
	for _, c := range m.state.ReattachConfigs {
		if c != nil {
			return c.Pid
		}
	}
	return 0
}

// Updates counts the updates of the node's devices. Each is an update of the node on the
// servers.
func (m *Manager) Updates() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.updates
}

// Devices are what the node has, one line for a group:
// "10c4/zigbee/ea60: healthy:1 sick:1(why it is)".
func (m *Manager) Devices() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return nodeDevices(m.devices)
}

// Resources are the same devices in Nomad's own type.
func (m *Manager) Resources() []*structs.NodeDeviceResource {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.devices
}

func nodeDevices(groups []*structs.NodeDeviceResource) string {
	var lines []string
	for _, g := range groups {
		line := g.ID().String() + ":"
		for _, d := range g.Instances {
			line += " " + d.ID
			if !d.Healthy {
				line += "(" + d.HealthDescription + ")"
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// Want waits for the node to have these devices, in the format of Devices, and returns
// how long that took. Lists since the last Want count too, because a test may be slower
// than a grace period.
func (m *Manager) Want(devices string, limit time.Duration) time.Duration {
	m.t.Helper()
	began := time.Now()
	end := time.After(limit)
	for {
		m.mu.Lock()
		found, got, changed := slices.Index(m.unseen, devices), strings.Join(m.unseen, "\nthen\n"), m.changed
		if found >= 0 {
			m.unseen = m.unseen[found:] // itself too: it may be wanted again
		}
		m.mu.Unlock()
		if found >= 0 {
			return time.Since(began)
		}
		select {
		case <-changed:
		case <-end:
			m.t.Fatalf("after %s the node has had\n%s\nwant\n%s", limit, got, devices)
		}
	}
}

// Reserve reserves devices as an agent does before it starts a task. The group is
// "<vendor>/<type>/<name>".
func (m *Manager) Reserve(group string, ids ...string) (*device.ContainerReservation, error) {
	part := strings.SplitN(group, "/", 3)
	return m.manager.Reserve(&structs.AllocatedDeviceResource{
		Vendor: part[0], Type: part[1], Name: part[2], DeviceIDs: ids,
	})
}

// Stats are the agent's current statistics.
func (m *Manager) Stats() []*device.DeviceGroupStats { return m.manager.AllStats() }

// Log is the log of agent and plugin.
func (m *Manager) Log() string { return m.log.String() }

// KillPlugin kills the plugin's process, and returns its id.
func (m *Manager) KillPlugin() int {
	m.t.Helper()
	pid := m.PID()
	if pid == 0 {
		m.t.Fatal("there is no plugin")
	}
	m.kill(pid)
	return pid
}

func (m *Manager) kill(pid int) {
	m.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH { // it may just have ended
		m.t.Error(err)
	}
	m.killed++
	WantEnd(m.t, pid, patience)
}

// processes are those with this manager's temporary directory in their environment,
// except the test itself.
func (m *Manager) processes() []int { return withEnviron("TMPDIR=" + m.short) }

// WantEnd waits for the end of a process.
func WantEnd(t *testing.T, pid int, limit time.Duration) {
	t.Helper()
	for end := time.Now().Add(limit); pid > 0 && alive(pid); {
		if time.Now().After(end) {
			t.Errorf("process %d is left", pid)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// alive counts a zombie as gone.
func alive(pid int) bool {
	st, err := task.ReadStat(pid)
	return err == nil && !st.Zombie
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
