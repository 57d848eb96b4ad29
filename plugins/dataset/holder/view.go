// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package holder reads from Nomad's HTTP API which allocations of this node hold which devices.
// A missing allocation proves nothing: without the right to read jobs a token gets an empty list
// instead of an error.
package holder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// API configures the access to the agent's API.
type API struct {
	Enabled bool `codec:"enabled" default:"true" doc:"Use the API. Otherwise a slot is freed only when it is reserved again."`
	agentapi.Config
}

// View is the state that the API shows at one time.
type View struct {
	Node  string    // the node's id
	Began time.Time // a time before the first request: the view shows everything that happened earlier

	// Complete means that the token sees every allocation. Otherwise, any allocation may be missing.
	Complete bool

	Allocations map[string]Allocation // the allocations of this node, by id
}

// Allocation is an allocation of this node.
type Allocation struct {
	Namespace string
	Devices   map[string]string // task names by device id
	Wanted    bool              // its desired status is "run"
	Ended     bool              // its client status is terminal, or its node is lost
}

// View reads the allocations of this node, with their devices of one type.
func (a API) View(ctx context.Context, kind string) (*View, error) {
	c := agentapi.New(a.Config)
	defer c.CloseIdleConnections()
	v := &View{Began: time.Now(), Allocations: map[string]Allocation{}}
	var self struct {
		Stats struct {
			Client struct {
				Node string `json:"node_id"`
			} `json:"client"`
		} `json:"stats"`
	}
	if err := get(ctx, c, "/v1/agent/self", nil, into(&self)); err != nil {
		return nil, err
	}
	v.Node = self.Stats.Client.Node
	if !policy.IsID(v.Node) {
		return nil, fmt.Errorf("the agent at %s is not a client: set api.address to the agent that runs the plugin",
			a.Address)
	}
	read := func(d *json.Decoder) error { return v.read(d, kind) }
	if err := get(ctx, c, "/v1/node/"+v.Node+"/allocations", nil, read); err != nil {
		return nil, err
	}
	var token struct{ AccessorID, Type string }
	if err := get(ctx, c, "/v1/acl/token/self", nil, into(&token)); err != nil {
		return nil, err
	}
	v.Complete = token.AccessorID == "acls-disabled" || token.Type == "management"
	return v, nil
}

// Gone reports whether Nomad no longer has an allocation that a view has shown. It returns false for an allocation that
// the token must not read, because Nomad's reply then differs.
func (a API) Gone(ctx context.Context, id, namespace string) (bool, error) {
	if !policy.IsID(id) {
		return false, nil
	}
	c := agentapi.New(a.Config)
	defer c.CloseIdleConnections()
	query := url.Values{"namespace": {namespace}}
	err := get(ctx, c, "/v1/allocation/"+id, query, func(*json.Decoder) error { return nil })
	var r *agentapi.Refused
	if errors.As(err, &r) && r.Status == http.StatusNotFound {
		return agentapi.IsMissing(err, "alloc"), nil
	}
	return false, err
}

// get requests a path with a timeout.
func get(ctx context.Context, c *agentapi.Client, path string, query url.Values, read func(*json.Decoder) error) error {
	ctx, cancel := agentapi.Soon(ctx, agentapi.Limit)
	defer cancel()
	_, err := c.Get(ctx, path, query, read)
	return err
}

func into(value any) func(*json.Decoder) error {
	return func(d *json.Decoder) error { return d.Decode(value) }
}

// Holders returns the ids of all allocations that have or had a device. live is the only
// allocation that may use the device now, or empty if none or several may.
func (v *View) Holders(device string) (all []string, live string) {
	var lives []string
	for id, a := range v.Allocations {
		if _, has := a.Devices[device]; !has {
			continue
		}
		all = append(all, id)
		if a.Wanted && !a.Ended {
			lives = append(lives, id)
		}
	}
	if len(lives) == 1 {
		live = lives[0]
	}
	return all, live
}

// allocation has the fields of api.Allocation that this package uses.
type allocation struct {
	ID, Namespace               string
	ClientStatus, DesiredStatus string
	AllocatedResources          struct {
		Tasks map[string]struct {
			Devices []struct {
				Type      string
				DeviceIDs []string
			}
		}
	}
}

// read decodes the allocations one at a time to save memory, because each contains its whole job.
func (v *View) read(d *json.Decoder, kind string) error {
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return errors.Join(errors.New("it is not a list"), err)
	}
	for d.More() {
		var a allocation
		if err := d.Decode(&a); err != nil {
			return err
		}
		if !policy.IsID(a.ID) {
			return errors.New("it has an allocation without an id")
		}
		v.Allocations[a.ID] = a.reduced(kind)
	}
	_, err := d.Token()
	return err
}

func (a *allocation) reduced(kind string) Allocation {
	r := Allocation{Namespace: a.Namespace, Wanted: a.DesiredStatus == "run", Devices: map[string]string{}}
	switch a.ClientStatus {
	case "complete", "failed", "lost":
		r.Ended = true
	}
	for task, resources := range a.AllocatedResources.Tasks {
		for _, group := range resources.Devices {
			for _, id := range group.DeviceIDs {
				if group.Type == kind {
					r.Devices[id] = plain.Line(task, 0)
				}
			}
		}
	}
	return r
}
