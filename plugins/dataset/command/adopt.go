// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/volume"
)

var adoptCommand = command{
	name: "adopt", help: "print the specification of a new volume that has the files of a dataset",
	usage: "DATASET", least: 1, most: 1,
	about: `DATASET is one below the root of a class, as zfs calls it, which any tool has brought (zfs
receive, syncoid, zrepl), or a volume whose record was lost with the agent's data_dir:

    nomad-device-dataset adopt tank/fast/data | nomad volume create -

It stays where it is until Nomad makes the volume. Its refquota is the capacity. It is for the
namespace of its folder, as tank/fast/team-a/data for "team-a", or else for "default".`,
	run: func(ctx context.Context, s *session, args []string) error {
		dataset := args[0]
		c, err := s.classOf(dataset)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(dataset, c.Root+"/")
		unlock, err := c.lock(ctx, path.Base(name))
		if err != nil {
			return err
		}
		defer unlock()
		d, err := c.engine.Adoptable(ctx, name)
		if err != nil {
			return fmt.Errorf("%s can't be adopted: %w", dataset, err)
		}
		f := found{c, d}
		if d.IsVolume() && volume.Recorded(d.Place) {
			return fmt.Errorf("%s can't be adopted: it is volume %s of this node, which has a record", dataset, f)
		}
		namespace := path.Dir(name)
		if namespace == "." {
			namespace = "default"
		}
		f.Tags = engine.Tags{
			engine.Kind: "volume", engine.Volume: cmp.Or(d.Tags[engine.Volume], path.Base(name)),
			engine.Namespace: namespace, engine.Adopt: rand.Text(),
		}
		at("checked")
		if err := c.engine.Adopt(ctx, name, f.Tags); err != nil {
			return fmt.Errorf("%s was not adopted: %w", dataset, err)
		}
		at("adopted")
		s.say("Dataset %s waits for its volume. The specification is for \"nomad volume create -\".", dataset)
		return s.specify(ctx, f)
	},
}

// classOf is the class below whose root a dataset is.
func (s *session) classOf(dataset string) (class, error) {
	all, err := s.classes()
	if err != nil {
		return class{}, err
	}
	var roots []string
	for _, c := range all {
		if strings.HasPrefix(dataset, c.Root+"/") {
			return c, nil
		}
		roots = append(roots, c.Root)
	}
	return class{}, fmt.Errorf("%s is not below the root of a class: those are %s", dataset, strings.Join(roots, ", "))
}

// specify prints the specification with which Nomad makes a volume of a dataset that waits for it.
func (s *session) specify(ctx context.Context, f found) error {
	capacity := strconv.FormatInt(f.Limits.Data, 10)
	v := map[string]any{
		"name": f.Tags[engine.Volume], "namespace": f.Tags[engine.Namespace], "type": "host", "plugin_id": "dataset",
		"capacity_min": capacity, "capacity_max": capacity,
		"capability": map[string]string{"access_mode": "single-node-writer", "attachment_mode": "file-system"},
		"parameters": map[string]string{"class": f.label, engine.Adopt: f.Tags[engine.Adopt]},
	}
	node, err := thisNode(ctx)
	if err == nil {
		v["node_id"] = node
	} else {
		s.say("Add the node_id of this node to the specification: the agent does not say what it is: %v", err)
	}
	s.json = true
	return s.answer(v, nil)
}

// thisNode is the id of this node for Nomad.
func thisNode(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		return "", err
	}
	defer client.Close()
	var self api.AgentSelf
	_, err = client.Raw().Query("/v1/agent/self", &self, (&api.QueryOptions{}).WithContext(ctx))
	id := self.Stats["client"]["node_id"]
	if err == nil && id == "" {
		err = errors.New("it is no client")
	}
	return id, err
}
