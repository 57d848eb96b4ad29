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

func TestSelf_ReturnsTheAgentsOwnNode(t *testing.T) {
	answers := map[string]any{
		"self": map[string]any{"config": map[string]string{"DataDir": "/d"},
			"stats": map[string]any{"client": map[string]string{"node_id": "own", "last_heartbeat": "1s"}}},
		"nodes": []api.NodeListStub{{ID: "other"}, {ID: "own"}},
		"other": api.Node{ID: "other", Status: api.NodeStatusReady},
		"own":   api.Node{ID: "own", Status: api.NodeStatusReady},
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
	_, err = Self(t.Context(), c, "/other")
	must.ErrorContains(t, err, "another agent")
	node, err := Self(t.Context(), c, "/d")
	must.NoError(t, err)
	must.Eq(t, "own", node.ID)
	delete(answers, "own") // the client runs, but has not registered yet
	_, err = Self(t.Context(), c, "/d")
	must.ErrorIs(t, err, ErrNotRegistered)
	answers["self"] = map[string]any{"config": map[string]string{"DataDir": "/d"}}
	_, err = Self(t.Context(), c, "/d")
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

func TestHealth_ReadsDriversOfTheNode(t *testing.T) {
	node := &api.Node{
		Status: api.NodeStatusReady,
		Drivers: map[string]*api.DriverInfo{
			"exec-lite": {Detected: true, Healthy: true, HealthDescription: "Healthy"},
			"ill":       {HealthDescription: "failed: rpc error: code = Unknown desc = no cgroup"},
		},
		Attributes: map[string]string{
			"driver.exec-lite": "1", "driver.exec-lite.version": "0.2.0", "driver.exec.version": "no",
		},
	}
	drivers, err := Health(node, "exec-lite")
	must.NoError(t, err)
	lite := Driver{Name: "exec-lite", Version: "0.2.0", Detected: true, Healthy: true, Description: "Healthy"}
	must.Eq(t, []Driver{lite}, drivers)
	drivers, err = Health(node, "exec-lite", "ill", "other")
	must.EqError(t, err, "driver ill is missing: failed: no cgroup; driver other is missing: ")
	must.Eq(t, []Driver{lite, {Name: "ill", Description: "failed: no cgroup"}, {Name: "other"}}, drivers)
	node.Status = api.NodeStatusDown
	_, err = Health(node)
	must.EqError(t, err, "the node is down")
}

func TestHostVolumePlugins_ReportsAMissingPlugin(t *testing.T) {
	node := &api.Node{Attributes: map[string]string{"plugins.host_volume.a.version": "1.0.0"}}
	test.NoError(t, HostVolumePlugins(node, "a"))
	err := HostVolumePlugins(node, "a", "b")
	test.EqError(t, err, "host volume plugin b is not fingerprinted: it did not answer the agent")
}
