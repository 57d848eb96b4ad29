// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// consul stands in for a Consul agent, as far as Nomad's script checks need one: it
// takes what it is sent and keeps what it is told of checks.
type consul struct {
	*httptest.Server

	mu     sync.Mutex
	names  map[string]string        // of checks, by id
	states map[string][]consulState // of checks, by id, all that it was told
}

// consulState is what Nomad says of a check: AgentCheckUpdate of Consul's API.
type consulState struct{ Status, Output string }

func newConsul(t *testing.T) *consul {
	c := &consul{names: map[string]string{}, states: map[string][]consulState{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/agent/self", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"Config": map[string]any{
			"Version": "1.21.0", "Revision": "0", "Server": true, "NodeName": "standin", "Datacenter": "dc1",
		}})
	})
	mux.HandleFunc("PUT /v1/agent/check/register", func(_ http.ResponseWriter, r *http.Request) {
		var check struct{ ID, Name string }
		if json.NewDecoder(r.Body).Decode(&check) == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.names[check.ID] = check.Name
		}
	})
	mux.HandleFunc("PUT /v1/agent/check/update/{id}", func(_ http.ResponseWriter, r *http.Request) {
		var s consulState
		if json.NewDecoder(r.Body).Decode(&s) == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.states[r.PathValue("id")] = append(c.states[r.PathValue("id")], s)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) })
	c.Server = httptest.NewServer(mux)
	t.Cleanup(c.Close)
	return c
}

// told are all states of the check of that name.
func (c *consul) told(name string) []consulState {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, n := range c.names {
		if n == name {
			return append([]consulState(nil), c.states[id]...)
		}
	}
	return nil
}

// options are those of a node that talks to it.
func (c *consul) options(o nodeOptions) nodeOptions {
	o.env = map[string]string{"CONSUL_HTTP_ADDR": strings.TrimPrefix(c.URL, "http://")}
	o.config += `
client {
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,vault"
    "driver.denylist"      = "docker,java,qemu"
  }
}
`
	return o
}
