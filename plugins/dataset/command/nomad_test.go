// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// fakeNomad answers as Nomad does for the volumes of some nodes, and calls the plugin there.
type fakeNomad struct {
	*httptest.Server
	plugins string // the directory of both faces

	mu      sync.Mutex
	nodes   []*node
	volumes map[string]*api.HostVolume
	jobs    map[string]*api.Job
	claims  map[string]string // the job of a volume's name; it uses the volume while it is not stopped
	ending  int               // how many looks a job that is stopped still uses it
	creates int
	stopped func() // what the job does then; may be nil
}

func newNomad(t testing.TB, nodes ...*node) *fakeNomad {
	f := &fakeNomad{nodes: nodes, volumes: map[string]*api.HostVolume{}, jobs: map[string]*api.Job{},
		claims:  map[string]string{},
		plugins: filepath.Dir(binary(t))}
	link := filepath.Join(f.plugins, "dataset")
	_ = os.Remove(link)
	must.NoError(t, os.Symlink("nomad-device-dataset", link))
	mux := http.NewServeMux()
	for pattern, answer := range map[string]func(*http.Request) (any, int){
		"GET /v1/agent/self":            f.self,
		"GET /v1/nodes":                 f.listNodes,
		"GET /v1/node/{id}":             f.getNode,
		"GET /v1/node/{id}/allocations": func(*http.Request) (any, int) { return []any{}, 200 },
		"GET /v1/volumes":               f.list,
		"GET /v1/volume/host/{id}":      f.get,
		"PUT /v1/volume/host/create":    f.create,
		"DELETE /v1/volume/host/{id}":   f.delete,
		"GET /v1/job/{id}":              f.job,
		"DELETE /v1/job/{id}":           f.stop,
		"PUT /v1/jobs":                  f.start,
		"GET /v1/job/{id}/submission":   func(*http.Request) (any, int) { return nil, 404 },
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			body, code := answer(r)
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(body)
		})
	}
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeNomad) self(*http.Request) (any, int) {
	return map[string]any{
		"config": map[string]any{"PluginDir": f.plugins, "Client": map[string]any{"HostVolumePluginDir": f.plugins}},
		"stats":  map[string]any{"client": map[string]any{"node_id": f.nodes[0].id}},
	}, 200
}

func (f *fakeNomad) listNodes(*http.Request) (any, int) {
	all := []api.NodeListStub{}
	for _, n := range f.nodes {
		all = append(all, api.NodeListStub{ID: n.id, Name: "node-" + n.id[:4], Address: n.dir, Status: "ready"})
	}
	return all, 200
}

func (f *fakeNomad) getNode(r *http.Request) (any, int) {
	return api.Node{ID: r.PathValue("id"), Attributes: map[string]string{"plugins.host_volume.dataset.version": "1"}}, 200
}

func (f *fakeNomad) list(r *http.Request) (any, int) {
	all := []*api.HostVolume{}
	for _, v := range f.volumes {
		if v.NodeID == r.URL.Query().Get("node_id") {
			all = append(all, v)
		}
	}
	return all, 200
}

func (f *fakeNomad) get(r *http.Request) (any, int) {
	v, ok := f.volumes[r.PathValue("id")]
	if !ok {
		return nil, 404
	}
	v.Allocations = nil
	if job := f.jobs[f.claims[v.Name]]; job != nil && (!*job.Stop || f.ending > 0) {
		f.ending--
		v.Allocations = []*api.AllocationListStub{{ID: uuid.NewString(), JobID: *job.ID, Namespace: "default"}}
	}
	return v, 200
}

func (f *fakeNomad) node(id string) *node {
	for _, n := range f.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// create refuses a second volume of a name on a node, as Nomad's client does.
func (f *fakeNomad) create(r *http.Request) (any, int) {
	var request api.HostVolumeCreateRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		return err.Error(), 400
	}
	v := request.Volume
	for _, other := range f.volumes {
		if other.NodeID == v.NodeID && other.Name == v.Name {
			return "volume name already exists on this node", 500
		}
	}
	f.creates++
	v.ID, v.State = uuid.NewString(), api.HostVolumeStateReady
	on := &volume{n: f.node(v.NodeID), id: v.ID, name: v.Name, namespace: v.Namespace, parameters: v.Parameters,
		capacity: v.RequestedCapacityMinBytes}
	if err := on.call("create"); err != nil {
		return err.Error(), 500
	}
	v.HostPath = on.path
	f.volumes[v.ID] = v
	return api.HostVolumeCreateResponse{Volume: v}, 200
}

func (f *fakeNomad) delete(r *http.Request) (any, int) {
	v, ok := f.volumes[r.PathValue("id")]
	if !ok {
		return nil, 404
	}
	on := &volume{n: f.node(v.NodeID), id: v.ID, name: v.Name, namespace: v.Namespace, parameters: v.Parameters}
	if err := on.call("delete"); err != nil {
		return err.Error(), 500
	}
	delete(f.volumes, v.ID)
	return struct{}{}, 200
}

func (f *fakeNomad) job(r *http.Request) (any, int) {
	job, ok := f.jobs[r.PathValue("id")]
	if !ok {
		return nil, 404
	}
	return job, 200
}

func (f *fakeNomad) stop(r *http.Request) (any, int) {
	*f.jobs[r.PathValue("id")].Stop = true
	if f.stopped != nil {
		f.stopped()
	}
	return struct{}{}, 200
}

func (f *fakeNomad) start(r *http.Request) (any, int) {
	var request api.JobRegisterRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		return err.Error(), 400
	}
	f.jobs[*request.Job.ID] = request.Job
	return struct{}{}, 200
}

// known is the volume for Nomad.
func (v *volume) known() *api.HostVolume {
	return &api.HostVolume{ID: v.id, Name: v.name, Namespace: v.namespace, NodeID: v.n.id, PluginID: "dataset",
		State: api.HostVolumeStateReady, Parameters: v.parameters, RequestedCapabilities: []*api.HostVolumeCapability{
			{AccessMode: "single-node-writer", AttachmentMode: "file-system"},
		}}
}
