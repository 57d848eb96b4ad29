// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// fast returns the class "fast" with these options added.
func fast(options string) string {
	return `class "fast" { root = "tank/nomad" ` + options + " }"
}

func dir(options string) string {
	return `class "dir" { root = "tank/dir" ` + options + " }"
}

func TestFile_NamesEachMistake(t *testing.T) {
	const mode = ` is not a mode: use up to four octal digits in quotes, without setuid, such as "0755"`
	const notAbsolute = ` is not an absolute path in its shortest form: begin it with /, and remove .. and a final /`
	const slots = `slots { count = 2 capacity = "1GiB" `
	for name, c := range map[string]struct{ file, want string }{
		"program":        {`zfs = "zfs"`, `zfs "zfs"` + notAbsolute},
		"unknown option": {`pool = "tank"`, `Invalid label: No argument or block type is named "pool".`},
		"no label":       {`class { root = "tank" }`, `class has no label: write class "NAME" { … }`},
		"twice":          {fast("") + "\n" + fast(""), `class "fast" is declared twice: give each its own name`},
		"name": {`class "1e" { root = "tank" }`,
			`"1e" can't be the name of a class: begin with a letter, and use at most 63 letters, digits, - and _`},
		"no root": {`class "x" { }`,
			`class "x": Missing required argument: The argument "root" is required, but no definition was found.`},
		"misspelt": {fast(`max_capcity = "1GiB"`),
			`class "fast": Invalid label: No argument or block type is named "max_capcity". Did you mean "max_capacity"?`},
		"zfs root": {`class "x" { root = "/tank" }`,
			`class "x": root "/tank" is not the name of a dataset: use for example "tank/nomad"`},
		"zfs snapshot": {`class "x" { root = "tank@a" }`,
			`class "x": root "tank@a" is not the name of a dataset: use for example "tank/nomad"`},
		"zfs option": {`class "x" { root = "-r" }`,
			`class "x": root "-r" is not the name of a dataset: use for example "tank/nomad"`},
		"zfs parent": {`class "x" { root = "tank/.." }`,
			`class "x": root "tank/.." is not the name of a dataset: use for example "tank/nomad"`},
		"same root": {fast("") + ` class "slow" { root = "tank/nomad" }`,
			`the roots of class "fast" and class "slow" overlap ("tank/nomad" and "tank/nomad"): choose roots that ` +
				`don't contain each other`},
		"root inside": {dir("") + ` class "slow" { root = "tank" }`,
			`the roots of class "dir" and class "slow" overlap ("tank/dir" and "tank"): choose roots that ` +
				`don't contain each other`},
		"size": {fast(`max_capacity = "lots"`),
			`class "fast": max_capacity "lots" is not a size: use for example "512KiB" or "10MiB"`},
		"order": {fast(`max_capacity = "512MiB"`),
			`class "fast": default_capacity "1GiB" is not between min_capacity "16MiB" and max_capacity "512MiB": ` +
				`change one of them`},
		"min order": {fast(`min_capacity = "2GiB"`),
			`class "fast": default_capacity "1GiB" is not between min_capacity "2GiB" and max_capacity "100GiB": ` +
				`change one of them`},
		"reserve": {fast(`snapshot_reserve = -1`), `class "fast": snapshot_reserve -1 is too small: use 0 to 10000`},
		"mode":    {fast(`mode = "rwx"`), `class "fast": mode "rwx"` + mode},
		"setuid":  {fast(`mode = "4755"`), `class "fast": mode "4755"` + mode},
		"allow": {fast(`allow = ["size"]`),
			`class "fast": allow "size" is not a parameter of volumes: use uid, gid, mode, clone_from`},
		"allow twice": {fast(`allow = ["uid", "uid"]`), `class "fast": allow has "uid" twice: list it once`},
		"namespaces": {fast(`namespaces = ["[a"]`),
			`class "fast": namespaces "[a" is not a pattern of namespaces: use letters, digits and -, and * for any characters`},
		"on_delete": {fast(`on_delete = "keep"`),
			`class "fast": on_delete "keep" is not known: use "destroy", "trash" or "retain"`},
		"ttl": {fast(`trash_ttl = "0s"`), `class "fast": trash_ttl "0s" is too small: use "1s" or more`},
		"slots' count": {fast(`slots { count = 0 capacity = "1GiB" }`),
			`class "fast": slots.count 0 is too small: use 1 to 1000`},
		"slots' capacity": {fast(`slots { count = 1 capacity = "1k" }`),
			`class "fast": slots.capacity "1k" is too small: use "1MiB" or more`},
		"slots' mount": {fast(slots + `mount = "scratch" }`), `class "fast": slots: mount "scratch"` + notAbsolute},
		"slots at /": {fast(slots + `mount = "/" }`),
			`class "fast": slots: mount "/" would hide the task's own root directory: use for example "/scratch"`},
		"two mistakes": {fast(`mode = "a" allow = ["b"]`),
			`class "fast": mode "a"` + mode + `; class "fast": allow "b" is not a parameter of volumes: use uid, ` +
				`gid, mode, clone_from`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(c.file)
			must.EqError(t, err, c.want)
		})
	}
}

func TestFile_HasDefaults(t *testing.T) {
	f, err := parse(fast(`allow = ["uid"] slots { count = 2 capacity = "1GiB" }`) +
		dir(""))
	must.NoError(t, err)
	must.Eq(t, "/usr/sbin/zfs", f.ZFS)
	c := f.Classes["fast"]
	test.Eq(t, "trash", c.OnDelete)
	test.Eq(t, &Slots{Count: 2, Capacity: "1GiB", Mount: "/scratch"}, c.Slots)
	test.Nil(t, f.Classes["dir"].Slots)
}

// A user who can change the file has root's access to all volumes of the node.
func TestLoad_RefusesAFileThatOtherUsersCanChange(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to others")
	}
	base, err := filepath.EvalSymlinks(t.TempDir())
	must.NoError(t, err)
	path := filepath.Join(base, "dataset.hcl")
	write := func(text string) { must.NoError(t, os.WriteFile(path, []byte(text), 0o644)) }
	refused := func(want string) {
		t.Helper()
		_, err := Load(path)
		must.ErrorContains(t, err, want)
	}
	_, err = Load(path)
	must.ErrorIs(t, err, fs.ErrNotExist)
	write(fast(""))
	f, err := Load(path)
	must.NoError(t, err)
	must.MapContainsKey(t, f.Classes, "fast")

	must.NoError(t, os.Chmod(path, 0o666))
	refused("other users may write to " + path)
	must.NoError(t, os.Chmod(path, 0o644))
	must.NoError(t, os.Chown(path, 65534, -1))
	refused(path + " belongs to user 65534")
	must.NoError(t, os.Chown(path, 0, -1))
	must.NoError(t, os.Chmod(base, 0o777))
	refused("other users may write to " + base)
	must.NoError(t, os.Chmod(base, 0o755))
	write("class {")
	refused("the operator's file " + path + " is not valid: ")
	write(strings.Repeat("# ", 1<<20))
	refused("is larger than 1 MiB")
	must.NoError(t, os.Remove(path))
	must.NoError(t, os.Symlink("real", path))
	must.NoError(t, os.WriteFile(filepath.Join(base, "real"), []byte(dir("")), 0o644))
	_, err = Load(path)
	must.NoError(t, err)
	must.NoError(t, os.Chown(filepath.Join(base, "real"), 65534, -1))
	refused(path + " belongs to user 65534")
}

const classes = `
class "fast" {
   root = "tank/fast"
  allow = ["uid", "gid", "mode", "clone_from"]
  min_capacity = "16MiB"  default_capacity = "64MiB"  max_capacity = "1GiB"  snapshot_reserve = 20
}
class "team" { root = "tank/team"  namespaces = ["team-*", "ops"]  allow = ["gid"] }
class "bare" { root = "tank/bare"  mode = "1770" }
`

func TestVolume_RefusesInvalidRequests(t *testing.T) {
	f, err := parse(classes)
	must.NoError(t, err)
	const id = ` is not the number of a user or group: use 0 to 4294967294`
	const origin = ` is not a snapshot of a volume: use <id or name of the volume>@<snapshot>`
	p := func(more ...string) map[string]string {
		all := map[string]string{"class": "fast"}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	for name, c := range map[string]struct {
		r    Request
		want string
	}{
		"no class": {Request{}, `the parameter "class" is missing: use "bare", "fast"`},
		"unknown class": {Request{Parameters: p("class", "fats")},
			`class "fats" does not exist on this node: use "bare", "fast"`},
		"namespace": {Request{Namespace: "dev", Parameters: p("class", "team")},
			`class "team" does not allow namespace "dev": use "bare", "fast"`},
		"parameter": {Request{Parameters: p("quota", "1")},
			`class "fast" does not allow the parameter "quota": use uid, gid, mode, clone_from`},
		"parameter, one allowed": {Request{Namespace: "ops", Parameters: p("class", "team", "uid", "1")},
			`class "team" does not allow the parameter "uid": use gid`},
		"parameter, none allowed": {Request{Parameters: p("class", "bare", "uid", "1")},
			`class "bare" does not allow the parameter "uid": leave it out`},
		"uid":          {Request{Parameters: p("uid", "app")}, `the parameter uid "app"` + id},
		"reserved uid": {Request{Parameters: p("uid", "4294967295")}, `the parameter uid "4294967295"` + id},
		"gid":          {Request{Parameters: p("gid", "-1")}, `the parameter gid "-1"` + id},
		"mode": {Request{Parameters: p("mode", "u+w")},
			`the parameter mode "u+w" is not a mode: use up to four octal digits in quotes, without setuid, such as "0755"`},
		"clone of no snapshot": {Request{Parameters: p("clone_from", "data")}, `the parameter clone_from "data"` + origin},
		"clone of no name":     {Request{Parameters: p("clone_from", "data@")}, `the parameter clone_from "data@"` + origin},
		"too large": {Request{Max: 2 << 30, Parameters: p()},
			`a capacity of 2 GiB is more than class "fast" allows: use at most 1GiB`},
		"too large minimum": {Request{Min: 2 << 30, Max: 3 << 30, Parameters: p()},
			`a capacity of 3 GiB is more than class "fast" allows: use at most 1GiB`},
		"too small": {Request{Min: 1000, Parameters: p()},
			`a capacity of 1000 B is less than class "fast" allows: use at least 16MiB`},
		"min above max": {Request{Min: 64 << 20, Max: 32 << 20, Parameters: p()},
			`capacity_min 64 MiB is above capacity_max 32 MiB: swap them`},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := f.Volume(c.r)
			must.EqError(t, err, c.want)
			must.Nil(t, v)
		})
	}
	f, err = parse(`class "ops" { root = "tank" namespaces = ["ops"] }`)
	must.NoError(t, err)
	_, err = f.Volume(Request{Namespace: "dev"})
	must.EqError(t, err, `the parameter "class" is missing: ask the operator for a class that allows the namespace`)
}

func TestVolume_AppliesClassAndParameters(t *testing.T) {
	f, err := parse(classes)
	must.NoError(t, err)
	v, err := f.Volume(Request{ID: "i", Name: "n", Namespace: "default", Parameters: map[string]string{
		"class": "fast", "uid": "1000", "gid": "100", "mode": "750",
		"clone_from": "a@b@c",
	}})
	must.NoError(t, err)
	must.Eq(t, &Volume{Class: "fast", Owner: Owner{1000, 100, 0o750}, Clone: &Origin{"a@b", "c"}, Spec: engine.Spec{
		Limits: engine.Limits{Data: 64 << 20, Snapshots: (64 << 20) / 100 * 20},
		Tags:   engine.Tags{"kind": "volume", "id": "i", "volume": "n", "namespace": "default"},
	}}, v)

	v, err = f.Volume(Request{Namespace: "team-a", Parameters: map[string]string{"class": "bare"}})
	must.NoError(t, err)
	must.Eq(t, Owner{0, 0, 0o1770}, v.Owner)
	must.Nil(t, v.Clone)
	_, err = f.Volume(Request{Namespace: "team-a", Parameters: map[string]string{"class": "team"}})
	must.NoError(t, err)
}

func TestLimits_PreferTheLargestCapacity(t *testing.T) {
	f, err := parse(classes)
	must.NoError(t, err)
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct{ low, high, want int64 }{
		{0, 0, 64 * mib},
		{32 * mib, 0, 32 * mib},
		{0, 128 * mib, 128 * mib},
		{32 * mib, 128 * mib, 128 * mib},
		{32 * mib, 4 * gib, gib},
		{mib, 32 * mib, 32 * mib},
	} {
		l, err := f.Limits("fast", c.low, c.high)
		must.NoError(t, err)
		must.Eq(t, c.want, l.Data, must.Sprintf("%d to %d", c.low, c.high))
	}
	_, err = f.Limits("gone", 0, 0)
	must.EqError(t, err, `class "gone" does not exist on this node`)
}
