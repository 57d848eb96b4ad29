// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// Info describes an agent. It is stored in the agent's directory as agent.json: with that file, another process can
// restart or remove the agent.
type Info struct {
	Runtime   Runtime  `json:"runtime"`
	Dir       string   `json:"dir"`
	Binary    string   `json:"binary,omitempty"`
	Container string   `json:"container,omitempty"` // container id
	HTTP      int      `json:"http_port"`
	RPC       int      `json:"rpc_port"`
	Serf      int      `json:"serf_port"`
	Plugins   []string `json:"plugins"`          // names
	Server    string   `json:"server,omitempty"` // see Options.Server

	Process task.Identity `json:"process,omitzero"` // the agent's process on the host

	HostVolumes []string `json:"host_volume_plugins,omitempty"` // ids of host volume plugins

	// Settled is set when the agent is healthy for the first time.
	Settled bool `json:"settled"`
}

// Drivers returns the task drivers among the agent's plugins.
func (i Info) Drivers() []string {
	var names []string
	for _, p := range i.Plugins {
		if d := (Plugin{Binary: p}).Driver(); d != "" {
			names = append(names, d)
		}
	}
	return names
}

// record is the part of an agent that both runtimes share.
type record struct {
	layout layout
	client *api.Client
	info   Info
}

// agent returns the agent of this record.
func (r *record) agent() Agent {
	if r.info.Runtime == Container {
		return newContainer(r)
	}
	return newHost(r)
}

// newLayout returns a layout with these paths. Its other directories are in the agent's directory on this machine.
func (r *record) newLayout(data, state string) layout {
	dir := r.info.Dir
	return layout{Data: data, State: state, Plugins: filepath.Join(dir, "plugins"),
		HostVolumes: filepath.Join(dir, "host_volume_plugins")}
}

// connect creates the API client. The caller has chosen the port.
func (r *record) connect() (err error) {
	r.client, err = nomad.NewClient(r.Address())
	return err
}

func (r *record) Info() Info { return r.info }

func (r *record) Client() *api.Client { return r.client }

func (r *record) Address() string { return fmt.Sprintf("http://127.0.0.1:%d", r.info.HTTP) }

func (r *record) DataDir() string { return r.layout.Data }

func (r *record) StateDir() string { return r.layout.State }

func (r *record) PluginDir() string { return r.layout.Plugins }

func (r *record) HostVolumePluginDir() string { return r.layout.HostVolumes }

func (r *record) settle() error {
	r.info.Settled = true
	return r.info.write()
}

func infoPath(dir string) string { return filepath.Join(dir, "agent.json") }

// ErrNone is the error of Open and Remove if no agent was started in the directory, or if it was removed.
var ErrNone = errors.New("the directory has no agent")

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
		return i, fmt.Errorf("failed to parse the agent's state %s: %w", infoPath(dir), err)
	}
	i.Dir = dir // not the file's value: another user may have written it, and Close removes Dir
	return i, nil
}

// write replaces agent.json by a rename, so a reader never sees an incomplete file.
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

// Open returns the agent that Run started in dir, in this process or another one. The agent may have exited. Open
// returns ErrNone if dir has no agent.
func Open(ctx context.Context, dir string) (Agent, error) {
	dir, err := resolve(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	info, err := readInfo(dir)
	if err != nil {
		return nil, err
	}
	r := &record{info: info}
	a := r.agent()
	if c, ok := a.(*containerAgent); ok {
		c.ctr, err = find(ctx, info.Container)
	}
	return a, errors.Join(err, r.connect())
}

// Remove removes the agent in dir with everything that it started, even if its state file is lost or cannot be read. It
// returns ErrNone if dir does not exist.
func Remove(ctx context.Context, dir string) error {
	dir, err := resolve(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return err
	}
	a, lost := Open(ctx, dir)
	if lost != nil {
		a = newHost(&record{info: Info{Dir: dir}})
	}
	return a.Close(ctx)
}
