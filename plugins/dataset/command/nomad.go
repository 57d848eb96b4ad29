// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// nomad is Nomad's API, for what a person does with volumes.
type nomad struct{ *api.Client }

// connect uses Nomad's own environment variables where nothing is given.
func connect(address, tokenFile string) (*nomad, error) {
	config := api.DefaultConfig()
	config.Address = cmp.Or(address, config.Address)
	if tokenFile != "" {
		token, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, err
		}
		config.SecretID = strings.TrimSpace(string(token))
	}
	client, err := api.NewClient(config)
	return &nomad{client}, err
}

func read(ctx context.Context, namespace string) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
}

func write(ctx context.Context, namespace string) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
}

// absent reports whether Nomad says that there is no such thing.
func absent(err error) bool {
	var r api.UnexpectedResponseError
	return errors.As(err, &r) && r.StatusCode() == http.StatusNotFound
}

// node finds one by its id, the beginning of it, or its name.
func (n *nomad) node(ctx context.Context, argument string) (*api.NodeListStub, error) {
	all, _, err := n.Nodes().List(read(ctx, ""))
	if err != nil {
		return nil, fmt.Errorf("failed to list Nomad's nodes: %w", err)
	}
	var meant []*api.NodeListStub
	for _, node := range all {
		if node.ID == argument {
			return node, nil
		}
		if node.Name == argument || len(argument) >= 4 && strings.HasPrefix(node.ID, argument) {
			meant = append(meant, node)
		}
	}
	if len(meant) != 1 {
		return nil, fmt.Errorf("%d nodes are %q: use the id of one, which \"nomad node status\" shows", len(meant), argument)
	}
	return meant[0], nil
}

func (n *nomad) attributes(ctx context.Context, node string) (map[string]string, error) {
	full, _, err := n.Nodes().Info(node, read(ctx, ""))
	if err != nil {
		return nil, fmt.Errorf("node %s can't be looked at: %w", node, err)
	}
	return full.Attributes, nil
}

// volumeNamed is the volume of a name (or id) on a node, nil if there is none. Nomad has a
// name only once on a node, whatever the namespace.
func (n *nomad) volumeNamed(ctx context.Context, node, namespace, name string) (*api.HostVolume, error) {
	all, _, err := n.HostVolumes().List(&api.HostVolumeListRequest{NodeID: node}, read(ctx, cmp.Or(namespace, "*")))
	if err != nil {
		return nil, fmt.Errorf("the volumes of node %s can't be listed: %w", node, err)
	}
	for _, v := range all {
		if v.Name == name || v.ID == name || v.Namespace+"/"+v.Name == name {
			full, _, err := n.HostVolumes().Get(v.ID, read(ctx, v.Namespace))
			return full, err
		}
	}
	return nil, nil
}

// volume is what Nomad has of one here.
func (n *nomad) volume(ctx context.Context, f found) (*api.HostVolume, error) {
	v, _, err := n.HostVolumes().Get(f.id(), read(ctx, f.Tags[engine.Namespace]))
	if absent(err) {
		return nil, fmt.Errorf("volume %s is not Nomad's: it was deleted, or the token may not see it", f)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to ask Nomad for volume %s: %w", f, err)
	}
	return v, nil
}

// users are the allocations with a claim on a volume that may still run.
func (n *nomad) users(ctx context.Context, v *api.HostVolume) (users, error) {
	now, _, err := n.HostVolumes().Get(v.ID, read(ctx, v.Namespace))
	if err != nil {
		return nil, fmt.Errorf("failed to ask Nomad who uses volume %s: %w", v.ID, err)
	}
	return now.Allocations, nil
}

type users []*api.AllocationListStub

func (u users) names() (names []string) {
	for _, a := range u {
		names = append(names, fmt.Sprintf("allocation %.8s of job %s", a.ID, a.JobID))
	}
	return names
}

func (u users) jobs() (jobs []string) {
	for _, a := range u {
		if job := a.Namespace + "/" + a.JobID; !slices.Contains(jobs, job) {
			jobs = append(jobs, job)
		}
	}
	return jobs
}

// stopped reports whether a job was stopped, or purged.
func (n *nomad) stopped(ctx context.Context, name string) (bool, error) {
	namespace, id, _ := strings.Cut(name, "/")
	job, _, err := n.Jobs().Info(id, read(ctx, namespace))
	if absent(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("job %s can't be looked at: %w", name, err)
	}
	return job.Stop != nil && *job.Stop, nil
}

// stop stops a job. One that is the child of another can't be started again.
func (n *nomad) stop(ctx context.Context, name string) error {
	namespace, id, _ := strings.Cut(name, "/")
	job, _, err := n.Jobs().Info(id, read(ctx, namespace))
	if err != nil {
		return fmt.Errorf("job %s can't be looked at: %w", name, err)
	}
	if job.ParentID != nil && *job.ParentID != "" {
		return fmt.Errorf("job %s was dispatched by %s and can't be started again: stop it yourself", name, *job.ParentID)
	}
	if _, _, err := n.Jobs().Deregister(id, false, write(ctx, namespace)); err != nil {
		return fmt.Errorf("job %s can't be stopped: %w", name, err)
	}
	return nil
}

// start starts a job as it was before stop, and reports whether it had to.
func (n *nomad) start(ctx context.Context, name string) (bool, error) {
	namespace, id, _ := strings.Cut(name, "/")
	job, _, err := n.Jobs().Info(id, read(ctx, namespace))
	if err != nil {
		return false, fmt.Errorf("job %s, which was stopped, can't be started: %w", name, err)
	}
	if job.Stop == nil || !*job.Stop {
		return false, nil
	}
	stop := false
	job.Stop = &stop
	options := &api.RegisterOptions{EnforceIndex: true, ModifyIndex: *job.JobModifyIndex, PreserveCounts: true}
	// its source, for the web UI
	options.Submission, _, _ = n.Jobs().Submission(id, int(*job.Version), read(ctx, namespace)) //nolint:gosec // a count
	if _, _, err := n.Jobs().RegisterOpts(job, options, write(ctx, namespace)); err != nil {
		return false, fmt.Errorf("job %s, which was stopped, can't be started: %w", name, err)
	}
	return true, nil
}

// readyTime is how long a volume may take to be ready.
const readyTime = time.Minute

// elsewhere are the parameters of a volume in a class of another node.
func elsewhere(old *api.HostVolume, class string) map[string]string {
	parameters := map[string]string{}
	maps.Copy(parameters, old.Parameters)
	delete(parameters, "clone_from")
	delete(parameters, engine.Adopt)
	parameters["class"] = class
	return parameters
}

// create makes a volume like another one on a node, with what was received there.
func (n *nomad) create(ctx context.Context, old *api.HostVolume, capacity int64, node, class, key string) (
	*api.HostVolume, error,
) {
	parameters := elsewhere(old, class)
	parameters[engine.Adopt] = key
	request := &api.HostVolumeCreateRequest{Volume: &api.HostVolume{
		Namespace: old.Namespace, Name: old.Name, PluginID: old.PluginID, NodeID: node,
		RequestedCapacityMinBytes: capacity, RequestedCapacityMaxBytes: capacity, // the same, whatever the class has
		RequestedCapabilities: old.RequestedCapabilities, Parameters: parameters,
	}}
	made, _, err := n.HostVolumes().Create(request, write(ctx, old.Namespace))
	if err != nil {
		return nil, err
	}
	for started := time.Now(); ; {
		v, _, err := n.HostVolumes().Get(made.Volume.ID, read(ctx, old.Namespace))
		if err == nil && v.State == api.HostVolumeStateReady {
			return v, nil
		}
		if time.Since(started) > readyTime {
			return nil, errors.Join(fmt.Errorf("volume %s is not ready after %s", made.Volume.ID, readyTime), err)
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// delete removes a volume. One that is not there is no error.
func (n *nomad) delete(ctx context.Context, f found) error {
	_, _, err := n.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: f.id()}, write(ctx, f.Tags[engine.Namespace]))
	if err != nil && !absent(err) {
		return fmt.Errorf("volume %s can't be deleted: %w", f, err)
	}
	return nil
}
