// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"os/exec"
	"testing"

	"github.com/google/uuid"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

func TestAdopt(t *testing.T) { adoptions.run(t) }

var adoptions = cases{
	"a volume gets the dataset":        adopted,
	"another volume does not get it":   notAdopted,
	"killed at a step":                 killedInAdopt,
	"its previous name is taken again": broughtAgain,
}

// brought makes a dataset with a file, as another tool would, and makes it wait for a volume with the key.
func (n *node) brought(key string) (name string) {
	n.t.Helper()
	name = "brought-" + uuid.NewString()
	full := zfsfusetest.Sub(n.t, n.pool, "dir/"+name)
	dir := n.t.TempDir()
	zfs := func(args ...string) {
		n.t.Helper()
		out, err := exec.Command(n.pool.Program, args...).CombinedOutput()
		must.NoError(n.t, err, must.Sprintf("%q: %s", args, out))
	}
	zfs("set", "mountpoint="+dir, full)
	put(n.t, dir, "a", "text")
	must.NoError(n.t, engine.SetOwner(dir, 1234, 99, 0o750))
	zfsfusetest.Unmount(n.t, dir)
	zfs("set", "refquota=32M", full)
	must.NoError(n.t, n.engine("dir").Adopt(n.t.Context(), name, engine.Tags{engine.Kind: "volume",
		engine.Volume: "theirs", engine.Namespace: "default", engine.Adopt: key}))
	return name
}

func adopted(t *testing.T, n *node) {
	n.brought("key")
	r := volume("adopt", "key")
	r.max = 64 * mib
	got := n.create(r)
	must.Eq(t, 64*mib, got.Bytes)
	has(t, got.Path, "a", "text")
	hasOwner(t, got.Path, 1234, 99, 0o750)
	must.Eq(t, "data", n.get(r).Tags[engine.Volume])
	must.Eq(t, got.Path, n.create(r).Path) // Nomad repeats create when an agent starts
	has(t, got.Path, "a", "text")
	n.delete(r)
	must.SliceLen(t, 1, n.inTrash())
}

func notAdopted(t *testing.T, n *node) {
	n.brought("key")
	n.unchanged(func() {
		n.fails("create", volume("adopt", "other"), `has no dataset with the key in "adopt"`)
		n.fails("create", volume("adopt", "key", "clone_from", "data@one"), "mutually exclusive")
		elsewhere := volume("adopt", "key")
		elsewhere.namespace = "ops"
		n.fails("create", elsewhere, `the key in "adopt" is for namespace "default"`)
		n.fails("create", volume("clone_from", "theirs@one"), `found no volume "theirs" to clone`)
	})
	has(t, n.create(volume("adopt", "key")).Path, "a", "text")
	n.refused("create", volume("adopt", "key"), `has no dataset with the key in "adopt"`) // the dataset is a volume now
}

func killedInAdopt(t *testing.T, n *node) {
	for _, step := range []string{"written", "tagged", "renamed", "owned", "ready"} {
		name := n.brought("key-" + step)
		r := volume("adopt", "key-"+step)
		n.killed(step, "create", r)
		if step != "ready" {
			n.delete(r) // Nomad undoes the failed create
			must.SliceContains(t, n.names(), name)
			r = volume("adopt", "key-"+step) // and retries it with another id
		}
		got := n.create(r)
		has(t, got.Path, "a", "text")
		must.Eq(t, []string{engine.VolumeName("default", r.id)}, n.names(), must.Sprint(step))
		must.Eq(t, []string{r.id + ".json"}, n.records())
		must.NoError(t, n.engine("dir").Destroy(t.Context(), engine.VolumeName("default", r.id)))
		n.delete(r)
	}
}

func (n *node) names() (names []string) {
	n.t.Helper()
	all, err := n.engine("dir").List(n.t.Context())
	must.NoError(n.t, err)
	for _, d := range all {
		names = append(names, d.Name)
	}
	return names
}

// While a volume is created, another tool makes a dataset with the previous name of the adopted one.
func broughtAgain(t *testing.T, n *node) {
	name := n.brought("key")
	n.killed("renamed", "create", volume("adopt", "key"))
	other := zfsfusetest.Sub(t, n.pool, "dir/"+name)
	r := volume("adopt", "key")
	has(t, n.create(r).Path, "a", "text")
	n.only(r)
	must.NoError(t, exec.Command(n.pool.Program, "destroy", other).Run())
}
