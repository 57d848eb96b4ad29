// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"context"
	"errors"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Sight is what the plugin's own token is good for.
type Sight struct {
	All        bool     // it reads jobs in every namespace, or access control is off
	Namespaces []string // otherwise: where it does, of the first 20 that it is shown
	Reason     string   // one sentence, for a person
}

// nowhere is a namespace that no cluster has: who may look for a job there may in every namespace.
const nowhere = "outrider-looks-for-its-rights"

// Sight asks what the plugin's own token may see. It returns within 2 s.
func (c *Client) Sight(ctx context.Context) Sight {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	by := c.tokens(nil)[0]
	if by.err != nil {
		return Sight{Reason: by.err.Error()}
	}
	_, err := c.job(ctx, by, "", nowhere, nowhere)
	switch {
	case err == nil && by.secret == "":
		return Sight{All: true, Reason: "no token is needed to read jobs in every namespace"}
	case err == nil:
		return Sight{All: true, Reason: "the token may read jobs in every namespace" + c.noNodes(ctx, by)}
	case !errors.Is(err, errRefused):
		return Sight{Reason: err.Error()}
	case by.secret == "":
		return Sight{Reason: "Nomad's access control is on and there is no token_file: only workload identities are left"}
	}
	known, err := ask(ctx, c, by, func(n *api.Client, q *api.QueryOptions) (*api.ACLToken, error) {
		got, _, err := n.ACLTokens().Self(q)
		return got, err
	})
	switch {
	case errors.Is(err, errRefused) || err == nil && known == nil:
		return Sight{Reason: "Nomad does not know the token in " + c.o.TokenFile + ", or it has expired (403)"}
	case err != nil:
		return Sight{Reason: err.Error()}
	}
	return c.someSight(ctx, by)
}

// noNodes is what a token's sight lacks that may not read nodes.
func (c *Client) noNodes(ctx context.Context, by token) string {
	_, err := c.node(ctx, by, "", "00000000-0000-0000-0000-000000000000")
	if errors.Is(err, errRefused) {
		return ", but no nodes (node:read): what a purged job has left is not found"
	}
	return ""
}

func (c *Client) someSight(ctx context.Context, by token) (s Sight) {
	list, err := ask(ctx, c, by, func(n *api.Client, q *api.QueryOptions) (*[]*api.Namespace, error) {
		got, _, err := n.Namespaces().List(q)
		return &got, err
	})
	if err != nil && !errors.Is(err, errRefused) {
		return Sight{Reason: err.Error()}
	}
	if list != nil {
		for _, n := range (*list)[:min(len(*list), 20)] {
			if _, err := c.job(ctx, by, "", n.Name, nowhere); err == nil {
				s.Namespaces = append(s.Namespaces, n.Name)
			}
		}
	}
	if len(s.Namespaces) == 0 {
		s.Reason = "the token in " + c.o.TokenFile + " sees no job: it needs read-job in the namespaces of remote tasks"
	} else {
		s.Reason = "the token may read jobs in " + strings.Join(s.Namespaces, ", ") + " alone" + c.noNodes(ctx, by)
	}
	return s
}
