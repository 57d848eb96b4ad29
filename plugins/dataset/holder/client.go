// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package holder asks Nomad's HTTP API which allocations of this node hold which devices.
// What the API does not show is no evidence of anything: without the right to read jobs a
// token gets an empty list instead of an error.
package holder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// API is how the agent is asked.
type API struct {
	Enabled bool `codec:"enabled" default:"true" doc:"Whether it is asked. Otherwise a slot is given back when it is reserved again."`
	agentapi.Config
}

// client asks one agent.
type client struct{ *agentapi.Client }

func (a API) connect() (*client, error) {
	c, err := agentapi.New(a.Config)
	return &client{c}, err
}

// node asks for the id of the agent's node.
func (c *client) node(ctx context.Context) (string, error) {
	ctx, cancel := agentapi.Soon(ctx, agentapi.Limit)
	defer cancel()
	var self struct {
		Stats struct {
			Client struct {
				Node string `json:"node_id"`
			} `json:"client"`
		} `json:"stats"`
	}
	_, err := c.Get(ctx, "/v1/agent/self", nil, func(d *json.Decoder) error { return d.Decode(&self) })
	if err == nil && !policy.IsID(self.Stats.Client.Node) {
		err = fmt.Errorf("the agent at %s is no client: api.address is that of the agent that runs the plugin", c.Address)
	}
	return self.Stats.Client.Node, err
}

// seesAll reports whether nothing can be hidden from the token: because there are no ACLs, or
// because it may do everything.
func (c *client) seesAll(ctx context.Context) (bool, error) {
	ctx, cancel := agentapi.Soon(ctx, agentapi.Limit)
	defer cancel()
	var self struct{ AccessorID, Type string }
	_, err := c.Get(ctx, "/v1/acl/token/self", nil, func(d *json.Decoder) error { return d.Decode(&self) })
	return self.AccessorID == "acls-disabled" || self.Type == "management", err
}

// gone reports whether Nomad knows that there is no such allocation. For one that a token may
// not read, the answer is another one.
func (c *client) gone(ctx context.Context, id, namespace string) (bool, error) {
	ctx, cancel := agentapi.Soon(ctx, agentapi.Limit)
	defer cancel()
	_, err := c.Get(ctx, "/v1/allocation/"+id, url.Values{"namespace": {namespace}},
		func(*json.Decoder) error { return nil })
	var r *agentapi.Refused
	if errors.As(err, &r) && r.Status == http.StatusNotFound {
		return agentapi.IsMissing(err, "alloc"), nil
	}
	return false, err
}
