// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

func TestCommands(t *testing.T) { commands.on(t, "btrfs") }
func TestCommands_WithZFSFuse(t *testing.T) {
	testsupport.Long(t, "zfs-fuse takes its time")
	commands.on(t, "zfs-fuse")
}

var commands = cases{
	"list and check show the classes":          shown,
	"a rollback brings the old bytes":          rolledBack,
	"a rollback is refused while used":         rollbackInUse,
	"a rollback says what is lost":             rollbackLoses,
	"a clone is made by Nomad":                 cloned,
	"the trash is shown, restored and emptied": trashed,
	"doctor finds what is wrong":               examined,
}

func shown(t *testing.T, n *node) {
	n.write(options + ` on_delete = "trash"
  slots { count = 2  capacity = "32MiB" }`)
	must.StrContains(t, n.does("list").stdout, "slots in use: 0 of 2")
	v, gone := n.create("data", "snapshots", "hourly=3"), n.create("gone")
	v.fill("a", mib)
	must.NoError(t, gone.call("delete"))
	n.does("snapshot", "data", "before")

	var all []listed
	must.NoError(t, json.Unmarshal([]byte(n.does("list", "-json").stdout), &all))
	must.SliceLen(t, 1, all)
	must.Eq(t, []string{"fast", n.pool.Backend, n.pool.Root, ""}, []string{all[0].Class, all[0].Backend, all[0].Root,
		all[0].Problem})
	must.Greater(t, mib, all[0].Free)
	must.SliceLen(t, 2, all[0].Datasets)
	for _, d := range all[0].Datasets {
		switch d.ID {
		case v.id:
			must.Eq(t, []string{"volume", "data", "default", "hourly=3"}, []string{d.State, d.Name, d.Namespace, d.Schedule})
			must.EqOp(t, 64*mib, d.Capacity)
			must.SliceLen(t, 1, d.Snapshots)
			must.EqOp(t, "before", d.Snapshots[0].Name)
		case gone.id:
			must.EqOp(t, "trash", d.State)
		default:
			t.Fatal(d)
		}
	}
	text := n.does("list").stdout
	must.RegexMatch(t, regexp.MustCompile(`(?m)^  STATE +NAME +ID +USED +SIZE +SNAPSHOTS +MESSAGE$`), text) // as lab:status
	for _, want := range []string{"class fast: " + n.pool.Backend, "default/data", v.id, "64 MiB", "trash",
		"default/gone"} {
		must.StrContains(t, text, want)
	}

	text = n.does("check").stdout
	must.StrContains(t, text, n.file()+" is valid.")
	must.StrContains(t, text, "can be used")
	must.StrContains(t, text, "slots: 2 of 32MiB, device \""+n.pool.Backend+"/dataset/fast\"")
	n.write("max_capacity = \"1MiB\"\n allow = [\"x\"]")
	got := n.run("check")
	must.One(t, got.code)
	must.StrContains(t, got.stderr, "has 2 mistakes")
	n.write(options)
	n.pool.Root += "-gone"
	n.write(options)
	got = n.run("check")
	must.StrContains(t, got.stderr, "classes that can't be used: 1 of 1")
	must.StrContains(t, n.does("list").stdout, "can't be used: ")
	n.pool.Root = strings.TrimSuffix(n.pool.Root, "-gone")
	n.write(options)
}

func rolledBack(t *testing.T, n *node) {
	v := n.create("data")
	v.put("a", "old")
	must.EqOp(t, "before\n", n.does("snapshot", v.id, "before").stdout)
	v.put("a", "new")
	v.put("b", "more")
	n.refuses("it exists", "snapshot", "data", "before")
	n.refuses("is not a name of a snapshot", "snapshot", "data", "a/b")
	n.refuses("a schedule would remove", "snapshot", "data", "daily-20260102T030405Z")
	n.refuses(`there is no volume "other"`, "rollback", "other", "before")
	n.refuses(`has no snapshot "after": it has before`, "rollback", "data", "after")
	must.StrContains(t, n.does("rollback", "default/data", "before").stderr, "What was written since is lost.")
	v.has("a", "old")
	must.False(t, testsupport.Exists(v.path+"/b"))
	must.NoError(t, v.call("create")) // as at an agent's start
	v.has("a", "old")
	n.does("snapshot", "data", "before", "-remove")
	n.refuses(`has no snapshots`, "snapshot", "data", "before", "-remove")
}

func rollbackInUse(t *testing.T, n *node) {
	v := n.create("data")
	v.put("a", "old")
	n.does("snapshot", "data", "before")
	v.put("a", "new")
	sleeper := exec.Command("sleep", testsupport.Mark())
	sleeper.Dir = v.path
	must.NoError(t, sleeper.Start())
	n.refuses("(sleep)", "rollback", "data", "before")
	v.has("a", "new")
	must.NoError(t, sleeper.Process.Kill())
	_ = sleeper.Wait()
	n.does("rollback", "data", "before")
	v.has("a", "old")
}

func rollbackLoses(t *testing.T, n *node) {
	v := n.create("data")
	n.does("snapshot", "data", "one")
	v.put("a", "two")
	n.does("snapshot", "data", "two")
	if n.pool.Backend == "zfs" {
		n.refuses("would be lost: two", "rollback", "data", "one")
		must.StrContains(t, n.does("rollback", "data", "one", "-discard-later").stderr, "Lost are also the snapshots two.")
		must.False(t, testsupport.Exists(v.path+"/a"))
		return
	}
	must.StrNotContains(t, n.does("rollback", "data", "one").stderr, "Lost are also")
	must.False(t, testsupport.Exists(v.path+"/a"))
	n.does("rollback", "data", "two")
	v.has("a", "two")
}

func cloned(t *testing.T, n *node) {
	v := n.create("data")
	v.put("a", "old")
	n.does("snapshot", "data", "before")
	v.put("a", "new")
	n.refuses("usage: clone", "clone", "data", "copy")
	n.refuses("has no snapshot", "clone", "data@after", "copy")
	n.refuses("can't be the name of a volume", "clone", "data@before", "a b")
	specification := n.does("clone", "data@before", "copy").stdout
	must.StrContains(t, specification, `node_id   = "`+n.id+`"`)
	must.StrContains(t, specification, `capacity_min = "67108864"`)
	c := n.specified(specification)
	c.has("a", "old")
	c.put("a", "other")
	v.has("a", "new")
	n.write(strings.Replace(options, `"clone_from", `, "", 1))
	n.refuses("does not allow the parameter clone_from", "clone", "data@before", "copy")
	n.write(options)
}

func trashed(t *testing.T, n *node) {
	must.StrContains(t, n.does("trash", "list").stderr, "The trash is empty.")
	v := n.create("data", "uid", "1000")
	v.put("a", "text")
	sum := v.sum()
	n.does("snapshot", "data", "before")
	must.NoError(t, v.call("delete"))
	n.refuses("there is no volume", "snapshot", "data")
	must.RegexMatch(t, regexp.MustCompile(`^NAME +WAS +CLASS +USED +UNTIL\n.* volume default/data `), n.does("trash", "list").stdout)
	n.refuses(`the trash has no "other"`, "trash", "restore", "other")
	n.refuses(`the trash has no "other"`, "trash", "empty", "other")
	n.refuses("usage: trash", "trash", "burn")

	specification := n.does("trash", "restore", "data").stdout
	must.StrContains(t, n.does("list").stdout, "waits to become a volume")
	other := volume{n: n, id: v.id, name: "data", namespace: "ops", parameters: map[string]string{}}
	for pair := range slices.Chunk(parametersOf(specification), 2) {
		other.parameters[pair[0]] = pair[1]
	}
	must.ErrorContains(t, other.call("create"), `is for a volume of namespace "default"`)
	back := n.specified(specification)
	must.NotEq(t, v.id, back.id)
	must.EqOp(t, sum, back.sum())
	must.Eq(t, map[string][]string{"default/" + back.id: {"before"}}, n.all())
	must.NoError(t, back.call("create")) // as at an agent's start
	must.ErrorContains(t, (&volume{n: n, id: v.id, name: "data2", namespace: "default",
		parameters: back.parameters}).call("create"),
		"has nothing for the parameter adopt")

	must.NoError(t, back.call("delete"))
	n.does("trash", "empty", "data")
	must.MapEmpty(t, n.all())
	for range 2 {
		must.NoError(t, n.create("data").call("delete"))
	}
	n.refuses("was deleted more than once", "trash", "restore", "data")
	n.does("trash", "empty")
	must.MapEmpty(t, n.all())

	v = n.create("data")
	must.NoError(t, v.call("delete"))
	n.does("trash", "restore", "data", "-in-place")
	must.Eq(t, map[string][]string{"default/" + v.id: {}}, n.all())
}

func examined(t *testing.T, n *node) {
	v := n.create("data")
	n.env = []string{"NOMAD_ADDR=http://127.0.0.1:1"}
	must.StrContains(t, n.run("doctor").stdout, "- Nomad's API does not answer: ")
	fake := newNomad(t, n)
	fake.volumes[v.id] = v.known()
	n.env = []string{"NOMAD_ADDR=" + fake.URL}
	got := n.run("doctor")
	must.EqOp(t, "Nothing is wrong.\n", got.stdout, must.Sprint(got.stderr))

	e, ctx := n.engine(), t.Context()
	_, err := e.Create(ctx, engine.NewName("x"), engine.Spec{Tags: engine.Tags{engine.Kind: "volume"}})
	must.NoError(t, err)
	gone := n.create("gone")
	must.NoError(t, gone.call("delete"))
	for name := range n.all() {
		if engine.InTrash(name) {
			must.NoError(t, e.Tag(ctx, name, engine.Tags{engine.Expires: "2026-01-01T00:00:00Z"}))
		}
	}
	unknown := n.create("unknown")
	lost := n.create("lost")
	fake.volumes[lost.id] = lost.known()
	must.NoError(t, e.Destroy(ctx, "default/"+lost.id))
	must.NoError(t, os.Remove(fake.plugins+"/dataset"))
	problems := "5"
	if n.pool.Backend == "btrfs" {
		qgroup := func(what string) {
			out, err := exec.Command(n.pool.Program, "qgroup", what, "1/4242", n.pool.Root).CombinedOutput()
			must.NoError(t, err, must.Sprintf("%s", out))
		}
		qgroup("create")
		defer qgroup("destroy")
		problems = "6"
	}
	got = n.run("doctor")
	if n.pool.Backend == "btrfs" {
		must.StrContains(t, got.stdout, "1 qgroups of the btrfs of")
	}
	for _, want := range []string{
		".new/x of class fast was left by a process that was killed",
		"should have left the trash of class fast at 2026-01-01 00:00:00 UTC",
		"Nomad has no volume default/unknown (" + unknown.id + ") on this node",
		"volume default/lost (" + lost.id + ") of Nomad has no dataset",
		"has no host volume plugin",
	} {
		must.StrContains(t, got.stdout, want)
	}
	must.StrContains(t, got.stderr, "problems found: "+problems)
}
