package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Info is what is written down about an agent, in agent.json of its directory,
// so that a later process can find, restart and remove it.
type Info struct {
	Runtime   Runtime  `json:"runtime"`
	Dir       string   `json:"dir"`
	Name      string   `json:"name"`
	Binary    string   `json:"binary,omitempty"`
	Image     string   `json:"image,omitempty"`
	Container string   `json:"container,omitempty"` // container id
	Mode      string   `json:"mode,omitempty"`      // how the container got its rights
	Process   Process  `json:"process,omitzero"`    // the agent's process on the host
	HTTP      int      `json:"http_port"`
	RPC       int      `json:"rpc_port"`
	Serf      int      `json:"serf_port"`
	Plugins   []string `json:"plugins"` // names
	Hash      string   `json:"hash,omitempty"`

	Labels map[string]string `json:"labels,omitempty"` // see Options
	Env    map[string]string `json:"env,omitempty"`

	// Sums are the SHA-256 sums of the plugins' binaries, by name.
	Sums map[string]string `json:"plugin_sums"`

	Started time.Time `json:"started"`

	// Settled says that the agent was healthy once.
	Settled bool `json:"settled"`

	// NotRoot says that the agent is not root, though we may be: see cgroupsReadOnly.
	NotRoot bool `json:"not_root"`

	// Parents are the cgroups that the agent made beside those of its tasks and
	// that were not there before: only these are removed with it.
	Parents []string `json:"cgroup_parents,omitempty"`
}

// Drivers are the task drivers among the agent's plugins.
func (i Info) Drivers() []string {
	var names []string
	for _, p := range i.Plugins {
		if d := (Plugin{Binary: p}).Driver(); d != "" {
			names = append(names, d)
		}
	}
	return names
}

// DevicePlugins are the names of the device plugins among the agent's plugins.
func (i Info) DevicePlugins() []string {
	var names []string
	for _, p := range i.Plugins {
		if (Plugin{Binary: p}).Device() {
			names = append(names, p)
		}
	}
	return names
}

func infoPath(dir string) string { return filepath.Join(dir, "agent.json") }

// ErrNone is returned by Open where no agent was started or none is left.
var ErrNone = errors.New("no agent here")

func readInfo(dir string) (Info, error) {
	var i Info
	b, err := os.ReadFile(infoPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return i, ErrNone
	}
	if err != nil {
		return i, fmt.Errorf("failed to read the agent's state: %w", err)
	}
	if err := json.Unmarshal(b, &i); err != nil {
		return i, fmt.Errorf("failed to read the agent's state %s: %w", infoPath(dir), err)
	}
	return i, nil
}

// write replaces agent.json by a rename, so that a reader sees all or nothing.
func (i Info) write() error {
	b, err := json.MarshalIndent(i, "", "  ")
	if err != nil {
		return err
	}
	tmp := infoPath(i.Dir) + ".tmp"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("failed to write the agent's state: %w", err)
	}
	if err := os.Rename(tmp, infoPath(i.Dir)); err != nil {
		return fmt.Errorf("failed to write the agent's state: %w", err)
	}
	return nil
}
