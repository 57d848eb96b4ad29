// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package conformance contains the cases that every driver and every device plugin must pass, and the parts of a Nomad
// agent that are needed to run them. Tests and go tool mage conformance use it; no plugin is linked with it.
package conformance

import (
	"bytes"
	"maps"
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
	"github.com/hashicorp/nomad/helper/pluginutils/singleton"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// patience is how long a test waits for an event that must happen. It is long enough for a busy machine.
const patience = time.Minute

// Binary is a plugin as an executable file.
type Binary struct {
	// Name is the name of the file and of the plugin block in the agent's configuration.
	Name string

	// Exe is the program. Env is added to the test's own environment, so a test binary can also be the plugin.
	Exe string
	Env map[string]string

	// Config is HCL: the content of the plugin's config block.
	Config string
}

// Manager is the part of a Nomad agent that handles devices: its plugin loader and its device manager.
type Manager struct {
	t       *testing.T
	manager devicemanager.Manager
	log     logged
	short   string // the plugin's own temporary directory, which contains its socket
	killed  int    // how many plugin processes were killed; each leaves its socket

	mu      sync.Mutex
	devices []*structs.NodeDeviceResource
	updates []string // the devices after each update, in the format of Devices
	wanted  int      // index of the last update that Want has found
	state   *state.PluginState
}

// StartManager starts a manager with one plugin. At the end of the test, it shuts the manager down as an agent does,
// and checks that no process and no socket is left.
func StartManager(t *testing.T, b Binary) *Manager {
	t.Helper()
	m, err := newManager(t, b)
	must.NoError(t, err)
	return m
}

// RefuseManager checks that an agent with this plugin refuses to start, and returns the agent's error.
func RefuseManager(t *testing.T, b Binary) string {
	t.Helper()
	m, err := newManager(t, b)
	must.Error(t, err, must.Sprint("the agent starts"))
	for _, pid := range m.processes() { // an agent would exit here, and end its plugins
		m.kill(pid)
	}
	return err.Error()
}

// TempDir returns the temporary directory of the plugin's processes.
func (m *Manager) TempDir() string { return m.short }

func newManager(t *testing.T, b Binary) (*Manager, error) {
	t.Helper()
	m := &Manager{t: t}
	var err error
	m.short, err = os.MkdirTemp("", "oc") // short: a socket's path has at most 107 bytes (unix(7))
	must.NoError(t, err)
	env := map[string]string{}
	maps.Copy(env, b.Env)
	env["TMPDIR"] = m.short
	path := filepath.Join(t.TempDir(), b.Name)
	must.NoError(t, writeWrapper(path, b.Exe, env))
	t.Cleanup(func() {
		for _, pid := range m.processes() {
			t.Errorf("process %d is left", pid)
			m.kill(pid)
		}
		// go-plugin kills a plugin that does not exit within 2 s of a request (client.go, Kill); then its socket is left too
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
	must.NoError(t, err)
	logger := hclog.New(&hclog.LoggerOptions{Output: &m.log.b, Mutex: &m.log.mu, Level: hclog.Trace})
	catalog, err := loadPlugin(logger, path, parsed)
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
	m.updates = append(m.updates, nodeDevices(devices))
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

// PID returns the process ID of the plugin, or 0 if none is running.
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

// Updates returns the number of updates of the node's devices. In an agent, each of them also updates the node on the
// servers.
func (m *Manager) Updates() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.updates)
}

// Devices returns the node's devices, with one line per group, such as "10c4/zigbee/ea60: healthy:1 sick:1(why it is)".
func (m *Manager) Devices() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return nodeDevices(m.devices)
}

// Resources returns the node's devices as values of Nomad's type.
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

// Want waits for the node to have these devices, in the format of Devices, or to have had them at any time since the
// update that the previous Want found: a slow test may miss a state that lasts only for a grace period.
func (m *Manager) Want(devices string, limit time.Duration) {
	m.t.Helper()
	found := func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		i := slices.Index(m.updates[m.wanted:], devices)
		m.wanted += max(i, 0) // keep the found update, because it may be wanted again
		return i >= 0
	}
	if !eventually(limit, found) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.t.Fatalf("after %s the node has had\n%s\nwant\n%s", limit, strings.Join(m.updates[m.wanted:], "\nthen\n"), devices)
	}
}

// Reserve reserves devices as an agent does before it starts a task. group is "<vendor>/<type>/<name>".
func (m *Manager) Reserve(group string, ids ...string) (*device.ContainerReservation, error) {
	part := strings.SplitN(group, "/", 3)
	return m.manager.Reserve(&structs.AllocatedDeviceResource{
		Vendor: part[0], Type: part[1], Name: part[2], DeviceIDs: ids,
	})
}

// Stats returns the agent's current statistics.
func (m *Manager) Stats() []*device.DeviceGroupStats { return m.manager.AllStats() }

// Log returns the log of agent and plugin.
func (m *Manager) Log() string { return m.log.String() }

// KillPlugin kills the plugin's process, and returns its process ID.
func (m *Manager) KillPlugin() int {
	m.t.Helper()
	pid := m.PID()
	must.NotEqOp(m.t, 0, pid, must.Sprint("no plugin is running"))
	m.kill(pid)
	return pid
}

// Killed records that the plugin was killed, and waits until its process has ended. A test that does not use KillPlugin
// must call it after a kill.
func (m *Manager) Killed(pid int) {
	m.t.Helper()
	m.killed++
	WantEnd(m.t, pid, patience)
}

func (m *Manager) kill(pid int) {
	m.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH { // the process may have ended
		m.t.Error(err)
	}
	m.Killed(pid)
}

// processes returns the processes with this manager's temporary directory in their environment.
func (m *Manager) processes() []int { return withEnviron("TMPDIR=" + m.short) }

// WantEnd waits for the end of a process.
func WantEnd(t *testing.T, pid int, limit time.Duration) {
	t.Helper()
	if !eventually(limit, func() bool { return pid == 0 || !alive(pid) }) {
		t.Errorf("process %d is left", pid)
	}
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	st, err := task.ReadStat(pid)
	return err == nil && !st.Zombie
}

// logged is the output of one logger, which holds mu during each write.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
