// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// state is the lab for programs. Nodes and jobs are as Nomad's API lists them.
type state struct {
	Up      bool                `json:"up"`
	Address string              `json:"address,omitempty"`
	Runtime agent.Runtime       `json:"runtime,omitempty"`
	Dir     string              `json:"dir,omitempty"`
	Drivers []nomad.Driver      `json:"drivers,omitempty"`
	Devices []nomad.Device      `json:"devices,omitempty"`
	Nodes   []*api.NodeListStub `json:"nodes,omitempty"`
	Jobs    []*api.JobListStub  `json:"jobs,omitempty"`
}

// StatusJSON prints the state of the lab as one JSON object. A lab that is not up, or whose agent has ended, is none.
func (l *Lab) StatusJSON(ctx context.Context) error {
	var s state
	a, err := l.open(ctx)
	switch {
	case errors.Is(err, errDown), errors.Is(err, errEnded):
	case err != nil:
		return err
	default:
		if s, err = stateOf(ctx, a); err != nil {
			return err
		}
	}
	out := json.NewEncoder(l.out)
	out.SetIndent("", "  ")
	return out.Encode(s)
}

func stateOf(ctx context.Context, a agent.Agent) (state, error) {
	s := state{Up: true, Address: a.Address(), Runtime: a.Info().Runtime, Dir: a.Info().Dir}
	var err error
	if s.Drivers, err = drivers(ctx, a); err != nil {
		return s, err
	}
	if s.Devices, err = devices(ctx, a); err != nil {
		return s, err
	}
	q := (&api.QueryOptions{Namespace: "*"}).WithContext(ctx)
	if s.Nodes, _, err = a.Client().Nodes().List(q); err != nil {
		return s, fmt.Errorf("failed to list nodes: %w", err)
	}
	s.Jobs, err = jobs(ctx, a)
	return s, err
}
