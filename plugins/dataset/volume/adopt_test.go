// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

func TestAdopt_OnBtrfs(t *testing.T) { adoptions.run(t, "btrfs") }
func TestAdopt_OnZFS(t *testing.T) {
	testsupport.Long(t, "zfs-fuse takes its time")
	adoptions.run(t, "zfs-fuse")
}

var adoptions = cases{
	"a volume becomes what was received": adopted,
	"no other volume does":               notAdopted,
	"killed at a step":                   killedInAdopt,
}

// received makes what a stream would: a dataset with a file, and a key.
func (n *node) received(key string) (name string) {
	n.t.Helper()
	id := uuid.NewString()
	name = engine.ReceivedName(id)
	e := n.engine("dir")
	path, err := e.Create(n.t.Context(), name, engine.Spec{
		Limits: engine.Limits{Data: 32 * mib}, Dir: filepath.Join(n.volumes, "received-"+id),
		Tags: engine.Tags{engine.Kind: "volume", engine.ID: id, engine.Volume: "theirs", engine.Namespace: "default",
			engine.Adopt: key},
	})
	must.NoError(n.t, err)
	put(n.t, path, "a", "text")
	must.NoError(n.t, engine.SetOwner(path, 1234, 99, 0o750))
	return name
}

func adopted(t *testing.T, n *node) {
	n.received("key")
	r := volume("adopt", "key")
	r.max = 64 * mib
	got := n.create(r)
	must.Eq(t, 64*mib, got.Bytes)
	has(t, got.Path, "a", "text")
	hasOwner(t, got.Path, 1234, 99, 0o750)
	must.Eq(t, "data", n.get(r).Tags[engine.Volume])
	must.Eq(t, got.Path, n.create(r).Path) // as at the start of an agent
	has(t, got.Path, "a", "text")
	n.delete(r)
	must.SliceLen(t, 1, n.inTrash())
}

func notAdopted(t *testing.T, n *node) {
	n.received("key")
	n.refused("create", volume("adopt", "other"), `has nothing for the parameter adopt`)
	n.refused("create", volume("adopt", "key", "clone_from", "data@one"), "exclude each other")
	elsewhere := volume("adopt", "key")
	elsewhere.namespace = "ops"
	n.refused("create", elsewhere, `is for a volume of namespace "default"`)
	n.refused("create", volume("clone_from", "theirs@one"), `there is no volume "theirs"`)
	has(t, n.create(volume("adopt", "key")).Path, "a", "text")
}

func killedInAdopt(t *testing.T, n *node) {
	for _, step := range []string{"written", "tagged", "renamed", "filled", "owned", "ready"} {
		name := n.received("key-" + step)
		r := volume("adopt", "key-"+step)
		n.killed(step, "create", r)
		if step != "ready" {
			n.delete(r) // Nomad does not have it
			must.SliceContains(t, n.names(), name)
			n.killed(step, "create", r)
			r = volume("adopt", "key-"+step) // and gives it another id when it is tried again
		}
		got := n.create(r)
		has(t, got.Path, "a", "text")
		must.Eq(t, []string{engine.VolumeName("default", r.id)}, n.names(), must.Sprint(step))
		must.Eq(t, []string{r.id + ".json"}, n.records())
		must.NoError(t, n.engine("dir").Destroy(t.Context(), engine.VolumeName("default", r.id)))
		n.delete(r)
	}
}

// names are those of all datasets.
func (n *node) names() (names []string) {
	n.t.Helper()
	all, err := n.engine("dir").List(n.t.Context())
	must.NoError(n.t, err)
	for _, d := range all {
		names = append(names, d.Name)
	}
	return names
}
