// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"path"
	"strings"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
	"github.com/outrider-dev/outrider/plugins/dataset/volume"
)

var adoptCommand = command{
	name: "adopt", help: "print the specification of a new volume that has the files of a dataset",
	usage: "DATASET [-name NAME] [-namespace NAMESPACE]", least: 1, most: 1,
	about: `DATASET is one below the root of a class, as zfs calls it, which any tool has brought (zfs
receive, syncoid, zrepl), or a volume whose record was lost with the agent's data_dir:

    nomad-device-dataset adopt tank/fast/data | nomad volume create -

It stays where it is until Nomad makes the volume. Its refquota is the capacity.`,
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		name := f.String("name", "", "of the volume; by default the one that it had, or the dataset's")
		namespace := f.String("namespace", "", "of the volume; by default the one that it had, or \"default\"")
		return func(ctx context.Context, s *session, args []string) error {
			v, err := s.adopt(ctx, args[0], *name, *namespace)
			if err != nil {
				return err
			}
			return s.specify(ctx, v)
		}
	},
}

// adopt has a dataset wait for a volume. It may be called again, and then the key is the same.
func (s *session) adopt(ctx context.Context, dataset, name, namespace string) (f found, err error) {
	if f.class, err = s.classOf(dataset); err != nil {
		return f, err
	}
	below, _ := f.engine.Below(dataset)
	unlock, err := f.lock(ctx, path.Base(below))
	if err != nil {
		return f, err
	}
	defer unlock()
	if f.Dataset, err = f.engine.Adoptable(ctx, below); err != nil {
		return f, fmt.Errorf("%s can't be adopted: %w", dataset, err)
	}
	if f.IsVolume() && volume.Recorded(f.Place) {
		return f, fmt.Errorf("%s can't be adopted: it is volume %s of this node, which has a record", dataset, f)
	}
	name = cmp.Or(name, f.Tags[engine.Volume], path.Base(below))
	namespace = cmp.Or(namespace, f.Tags[engine.Namespace], "default")
	if namespace == below {
		return f, fmt.Errorf("%s can't be adopted for namespace %s, whose volumes are below it: rename it first (zfs rename)",
			dataset, namespace)
	}
	if err := f.takes(name, namespace, f.Limits.Data); err != nil {
		return f, fmt.Errorf("%s can't be adopted: %w", dataset, err)
	}
	f.Tags = engine.Tags{engine.Kind: "volume", engine.Volume: name, engine.Namespace: namespace, engine.Class: f.label,
		engine.Adopt: newKey(f.Dataset)}
	at("checked")
	if err := f.engine.Adopt(ctx, below, f.Tags); err != nil {
		return f, fmt.Errorf("%s was not adopted: %w", dataset, err)
	}
	at("adopted")
	s.say("Dataset %s waits for volume %s/%s. The specification is for \"nomad volume create -\".", dataset, namespace,
		name)
	return f, nil
}

// newKey is the key of a dataset that waits, or a new one: Nomad has shown that of a volume to others.
func newKey(d engine.Dataset) string {
	if d.Tags[engine.Adopt] != "" && d.Tags[engine.ID] == "" {
		return d.Tags[engine.Adopt]
	}
	return rand.Text()
}

// classOf is the class below whose root a dataset is.
func (s *session) classOf(dataset string) (class, error) {
	all, err := s.classes()
	if err != nil {
		return class{}, err
	}
	var roots []string
	for _, c := range all {
		if _, is := c.engine.Below(dataset); is {
			return c, nil
		}
		roots = append(roots, c.Root)
	}
	return class{}, fmt.Errorf("%s is not below the root of a class: those are %s", dataset, strings.Join(roots, ", "))
}

// takes returns why the class would refuse a volume.
func (c class) takes(name, namespace string, capacity int64) error {
	switch {
	case !volumeName.MatchString(name) || policy.IsID(name):
		return fmt.Errorf("%q can't be the name of a volume: choose one with -name, of letters, digits, -, _ and .", name)
	case !policy.IsNamespace(namespace):
		return fmt.Errorf("%q is not a namespace", namespace)
	}
	file := policy.File{Classes: map[string]policy.Class{c.label: c.Class}}
	_, err := file.Volume(policy.Request{Namespace: namespace, Min: capacity, Max: capacity,
		Parameters: map[string]string{"class": c.label}})
	return err
}
