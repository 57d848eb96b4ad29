// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestHealth_ReadsTheAgentsOwnNode(t *testing.T) {
	answers := map[string]any{
		"self": map[string]any{"stats": map[string]any{"client": map[string]string{"node_id": "own",
			"last_heartbeat": "1s"}}},
		"nodes": []api.NodeListStub{{ID: "other"}, {ID: "own"}},
		"other": api.Node{ID: "other", Status: api.NodeStatusReady},
		"own": api.Node{ID: "own", Status: api.NodeStatusReady, Drivers: map[string]*api.DriverInfo{
			"exec-lite": {Detected: true, Healthy: true, HealthDescription: "Healthy"},
		}},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := answers[path.Base(r.URL.Path)]
		if answer == nil {
			w.WriteHeader(http.StatusNotFound)
		}
		json.NewEncoder(w).Encode(answer)
	}))
	defer srv.Close()
	c, err := api.NewClient(&api.Config{Address: srv.URL})
	must.NoError(t, err)
	drivers, err := Health(t.Context(), c, "exec-lite")
	must.NoError(t, err)
	must.True(t, drivers[0].Healthy)
	_, err = Health(t.Context(), c, "exec-lite", "python")
	must.EqError(t, err, "driver python is missing: ")
	delete(answers, "own") // the client runs, but has not registered yet
	_, err = Health(t.Context(), c)
	must.ErrorIs(t, err, ErrNotRegistered)
	answers["self"] = map[string]any{}
	_, err = Health(t.Context(), c)
	must.ErrorIs(t, err, ErrNotRegistered)
}

func TestDriver_HealthIsOneWord(t *testing.T) {
	for want, driver := range map[string]Driver{
		"healthy":    {Version: "0.2.0", Detected: true, Healthy: true},
		"unhealthy":  {Version: "0.2.0", Detected: true, Description: "no cgroup"},
		"undetected": {Version: "0.2.0", Description: "no Python"},
		"missing":    {Description: "failed to fingerprint driver"}, // Nomad's message if a plugin fails
	} {
		test.Eq(t, want, driver.Health())
	}
}

func TestDriver_IsReadFromTheNode(t *testing.T) {
	node := &api.Node{
		Drivers: map[string]*api.DriverInfo{"exec-lite": {Detected: true, Healthy: true, HealthDescription: "Healthy"}},
		Attributes: map[string]string{
			"driver.exec-lite": "1", "driver.exec-lite.version": "0.2.0", "driver.exec-lite.cgroup": "v2",
			"driver.exec": "1", "driver.exec.version": "no",
		},
	}
	d := driverOf(node, "exec-lite")
	must.True(t, d.Detected, must.Sprintf("got %+v", d))
	must.True(t, d.Healthy, must.Sprintf("got %+v", d))
	must.Eq(t, "0.2.0", d.Version, must.Sprintf("got %+v", d))
	must.MapLen(t, 2, d.Attributes, must.Sprintf("got %+v", d))
	test.Eq(t, "v2", d.Attributes["cgroup"], test.Sprintf("got %+v", d))
	node.Drivers["ill"] = &api.DriverInfo{HealthDescription: "failed: rpc error: code = Unknown desc = no cgroup"}
	d = driverOf(node, "ill")
	test.Eq(t, "failed: no cgroup", d.Description)
	d = driverOf(node, "other")
	must.False(t, d.Detected, must.Sprintf("a missing driver: %+v", d))
	must.False(t, d.Healthy, must.Sprintf("a missing driver: %+v", d))
	test.Eq(t, "", d.Description, test.Sprintf("a missing driver: %+v", d))
}
