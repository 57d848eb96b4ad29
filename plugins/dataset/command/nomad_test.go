// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// fakeNomad answers as Nomad does for the volumes of a node.
type fakeNomad struct {
	*httptest.Server
	plugins string // the directory of both faces
	volumes map[string]*api.HostVolume
}

func newNomad(t testing.TB, n *node) *fakeNomad {
	f := &fakeNomad{volumes: map[string]*api.HostVolume{}, plugins: filepath.Dir(binary(t))}
	link := filepath.Join(f.plugins, "dataset")
	_ = os.Remove(link)
	must.NoError(t, os.Symlink("nomad-device-dataset", link))
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func() any{
		"GET /v1/agent/self": func() any {
			return map[string]any{
				"config": map[string]any{"PluginDir": f.plugins, "Client": map[string]any{"HostVolumePluginDir": f.plugins}},
				"stats":  map[string]any{"client": map[string]any{"node_id": n.id}},
			}
		},
		"GET /v1/node/{id}/allocations": func() any { return []any{} },
		"GET /v1/volumes": func() any {
			all := []*api.HostVolume{}
			for _, v := range f.volumes {
				all = append(all, v)
			}
			return all
		},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(answer()) })
	}
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (v *nomadVolume) known() *api.HostVolume {
	return &api.HostVolume{ID: v.id, Name: v.name, Namespace: v.namespace, NodeID: v.n.id, PluginID: "dataset",
		State: api.HostVolumeStateReady, Parameters: v.parameters, RequestedCapabilities: []*api.HostVolumeCapability{
			{AccessMode: "single-node-writer", AttachmentMode: "file-system"},
		}}
}
