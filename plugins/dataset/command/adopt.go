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
	about: `DATASET is the full ZFS name of a dataset below the root of a class. Any tool may have created it
(zfs receive, syncoid, zrepl), or it is a volume whose record was lost with the agent's data_dir:

    nomad-device-dataset adopt tank/fast/data | nomad volume create -

The dataset stays in place until Nomad creates the volume. Its refquota becomes the capacity. Its
parent sets the namespace: "team-a" for tank/fast/team-a/data, "default" for tank/fast/data.`,
	run: func(ctx context.Context, s *session, args []string) error {
		dataset := args[0]
		c, err := s.classOf(dataset)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(dataset, c.Root+"/")
		ctx, unlock, err := c.engine.Lock(ctx, path.Base(name), lockTime)
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
			return fmt.Errorf("%s can't be adopted: it is already volume %s of this node", dataset, f)
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
			return fmt.Errorf("failed to adopt %s: %w", dataset, err)
		}
		at("adopted")
		s.say("Dataset %s is ready. To make it a volume, pass the specification to \"nomad volume create -\".", dataset)
		return s.specify(ctx, f)
	},
}

// classOf returns the class whose root contains a dataset.
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
	return class{}, fmt.Errorf("%s is not below the root of a class: the roots are %s", dataset, strings.Join(roots, ", "))
}

// specify prints the specification with which "nomad volume create" makes a volume from a waiting dataset.
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
		s.say("The agent did not report this node's id: add it as node_id to the specification (%v)", err)
	}
	s.json = true
	return s.answer(v, nil)
}

// thisNode returns Nomad's id of this node.
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
		err = errors.New("the agent is not a client")
	}
	return id, err
}
