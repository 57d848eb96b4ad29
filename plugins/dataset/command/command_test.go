// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

func TestCommands(t *testing.T) { commands.run(t) }

var commands = cases{
	"list and check show the classes":          shown,
	"a rollback brings the old bytes":          rolledBack,
	"a rollback is refused while used":         rollbackInUse,
	"a rollback says what is lost":             rollbackLoses,
	"an id wins over a name":                   named,
	"a name means nothing to a hidden class":   hidden,
	"names reach a terminal printable":         escaped,
	"the trash is shown, restored and emptied": trashed,
	"each answer can be JSON":                  answered,
	"what another tool has brought is adopted": adoptedByHand,
	"what can't be adopted is refused":         unfit,
	"a volume whose record is lost is adopted": recordLost,
	"adopt is killed at a step":                adoptKilled,
	"check notes what needs a person":          noted,
}

func shown(t *testing.T, n *node) {
	n.write(options + ` on_delete = "trash"
  slots { count = 2  capacity = "32MiB" }`)
	must.StrContains(t, n.does("list").stdout, "slots in use: 0 of 2")
	v, gone := n.create("data"), n.create("gone")
	v.fill("a", mib)
	must.NoError(t, gone.call("delete"))
	n.does("snapshot", "data", "before")

	var all []listed
	n.answers(&all, "list")
	must.SliceLen(t, 1, all)
	must.Eq(t, []string{"fast", n.pool.Root, ""}, []string{all[0].Class, all[0].Root, all[0].Problem})
	must.Greater(t, mib, all[0].Free)
	must.SliceLen(t, 2, all[0].Datasets)
	for _, d := range all[0].Datasets {
		switch d.ID {
		case v.id:
			must.Eq(t, []string{"volume", "data", "default"}, []string{d.State, d.Name, d.Namespace})
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
	for _, want := range []string{"class fast: " + n.pool.Root, "default/data", v.id, "64 MiB", "trash",
		"default/gone"} {
		must.StrContains(t, text, want)
	}

	text = n.does("check").stdout
	must.StrContains(t, text, n.file()+" is valid.")
	must.StrContains(t, text, "can be used")
	must.StrContains(t, text, "slots: 2 of 32MiB, device \"zfs/dataset/fast\"")
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
	n.refuses("stop the job that uses it first: dataset "+n.pool.Root+"/default/"+v.id+" can't be unmounted", "rollback",
		"data", "before")
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
	n.refuses("would be lost: two", "rollback", "data", "one")
	must.StrContains(t, n.does("rollback", "data", "one", "-discard-later").stderr, "Lost are also the snapshots two.")
	must.False(t, testsupport.Exists(v.path+"/a"))
}

// called gives a volume a name that only a former version of the plugin allows.
func (v *nomadVolume) called(name string) {
	v.n.t.Helper()
	err := v.n.engine().Tag(context.Background(), "default/"+v.id, engine.Tags{engine.Volume: name})
	must.NoError(v.n.t, err)
}

func named(t *testing.T, n *node) {
	v, liar := n.create("data"), n.create("other")
	for _, name := range []string{v.id, "default/data"} {
		liar.called(name)
		n.does("snapshot", name, "s")
		must.Eq(t, map[string][]string{"default/" + v.id: {"s"}, "default/" + liar.id: {}}, n.all())
		n.does("snapshot", name, "s", "-remove")
	}
	liar.called("data")
	n.refuses(`"data" could be default/data (`, "snapshot", "data")
	liar.called(v.id)
	must.NoError(t, v.call("delete"))
	must.NoError(t, liar.call("delete"))
	must.StrContains(t, n.does("trash", "restore", v.id, "-in-place").stderr, "Volume default/data ("+v.id+") is back.")
}

func hidden(t *testing.T, n *node) {
	v := n.create("data")
	gone := n.create("gone")
	must.NoError(t, gone.call("delete"))
	n.write(options + "\n}\nclass \"lost\" {\n  root = \"" + n.pool.Root + "-lost\"")
	defer n.write(options)
	const why = "is: class lost can't be listed: the dataset "
	n.refuses(`it is not known which volume "data" `+why, "snapshot", "data")
	n.refuses(`it is not known which volume "default/data" `+why, "rollback", "default/data", "s")
	n.refuses(`it is not known which volume "gone" `+why, "trash", "restore", "gone")
	n.refuses(`it is not known which volume "gone" `+why, "trash", "empty", "gone")
	n.refuses(`it is not known which volume "`+n.id+`" `+why, "snapshot", n.id)
	n.does("snapshot", v.id, "s")
	got := n.run("trash", "list")
	must.One(t, got.code)
	must.StrContains(t, got.stdout, "volume default/gone")
	must.StrContains(t, got.stderr, "class lost can't be listed")
	must.StrContains(t, n.does("trash", "list", "-class", "fast").stdout, "volume default/gone")
	n.does("trash", "empty", gone.id)
	must.Eq(t, map[string][]string{"default/" + v.id: {"s"}}, n.all())
}

func escaped(t *testing.T, n *node) {
	const quoted = `"default/\x1b[2Jdata"`
	v := n.create("data")
	v.called("\x1b[2Jdata")
	shows := func(want, text string) {
		t.Helper()
		must.StrContains(t, text, want)
		must.StrNotContains(t, text, "\x1b")
	}
	shows(quoted, n.does("list").stdout)
	shows(`\u001b[2Jdata`, n.does("list", "-json").stdout)
	shows("volume "+quoted+" ("+v.id+") has no snapshots", n.run("snapshot", v.id, "s", "-remove").stderr)
	must.NoError(t, v.call("delete"))
	shows("volume "+quoted, n.does("trash", "list").stdout)
	shows("Volume "+quoted+" is out of the trash", n.does("trash", "restore", v.id).stderr)
	shows("waits to become volume "+quoted, n.does("check").stdout)
}

func answered(t *testing.T, n *node) {
	v := n.create("data")
	var made snapshots
	n.answers(&made, "snapshot", "data", "s1")
	must.Eq(t, snapshots{Volume: v.id, Snapshot: "s1"}, made)
	n.does("snapshot", "data", "s2")
	n.answers(&made, "rollback", "data", "s1", "-discard-later")
	must.Eq(t, snapshots{Volume: v.id, Snapshot: "s1", Removed: []string{"s2"}}, made)
	made = snapshots{}
	n.answers(&made, "snapshot", "data", "s*", "-remove")
	must.Eq(t, snapshots{Volume: v.id, Removed: []string{"s1"}}, made)

	var state checked
	n.answers(&state, "check")
	must.SliceEmpty(t, state.Mistakes)
	must.SliceLen(t, 1, state.Classes)
	must.Eq(t, "fast", state.Classes[0].Class)
	must.Positive(t, state.Classes[0].Free)

	must.NoError(t, v.call("delete"))
	var in []discarded
	n.answers(&in, "trash", "list")
	must.SliceLen(t, 1, in)
	must.Eq(t, []string{"fast", "volume", v.id, "data", "default"},
		[]string{in[0].Class, in[0].Kind, in[0].ID, in[0].Volume, in[0].Namespace})
	var waits specification
	n.answers(&waits, "trash", "restore", "data")
	must.Eq(t, specification{"fast", "default", "data", waits.Node, 64 * mib, waits.Key}, waits)
	must.NotEq(t, "", waits.Key)
	var gone map[string][]string
	n.answers(&gone, "trash", "empty")
	must.Eq(t, map[string][]string{"destroyed": {}}, gone)

	n.write("nonsense = 1\nrubbish = 2")
	must.NoError(t, json.Unmarshal([]byte(n.run("check", "-json").stdout), &state))
	must.SliceLen(t, 2, state.Mistakes)
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
	must.RegexMatch(t, regexp.MustCompile(`^NAME +WAS +CLASS +USED +STAYS\n.* volume default/data `), n.does("trash", "list").stdout)
	n.refuses(`the trash has no "other"`, "trash", "restore", "other")
	n.refuses(`the trash has no "other"`, "trash", "empty", "other")
	n.refuses("usage: trash", "trash", "burn")

	specification := n.does("trash", "restore", "data").stdout
	must.StrContains(t, n.does("list").stdout, "waits to become a volume")
	other := nomadVolume{n: n, id: v.id, name: "data", namespace: "ops", parameters: map[string]string{}}
	for pair := range slices.Chunk(parametersOf(specification), 2) {
		other.parameters[pair[0]] = pair[1]
	}
	must.ErrorContains(t, other.call("create"), `is for a volume of namespace "default"`)
	back := n.specified(specification)
	must.NotEq(t, v.id, back.id)
	must.EqOp(t, sum, back.sum())
	must.Eq(t, map[string][]string{"default/" + back.id: {"before"}}, n.all())
	must.NoError(t, back.call("create")) // as at an agent's start
	must.ErrorContains(t, (&nomadVolume{n: n, id: v.id, name: "data2", namespace: "default",
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

func noted(t *testing.T, n *node) {
	n.write(strings.Replace(options, "snapshot_reserve = 400", "snapshot_reserve = 50", 1))
	v := n.create("data")
	must.StrNotContains(t, n.does("check").stdout, "note: ")

	v.fill("a", 33*mib) // which its snapshots may have
	n.does("snapshot", "data", "before")
	must.NoError(t, os.Remove(v.path+"/a"))
	dataset := n.brought(v, "copy")
	n.does("adopt", dataset)
	gone, lost := n.create("gone"), n.create("lost")
	must.NoError(t, gone.call("delete"))
	for name := range n.all() {
		if engine.InTrash(name) {
			must.NoError(t, n.engine().Tag(t.Context(), name, engine.Tags{engine.Trashed: "2026-01-01T00:00:00Z"}))
		}
	}
	must.NoError(t, os.Remove(n.dir+"/volumes/.outrider/"+lost.id+".json"))
	testsupport.Within(t, time.Minute, func() error { // ZFS counts what was removed later
		text := n.does("check").stdout
		for _, want := range []string{
			"note: dataset copy waits to become volume default/copy\n",
			" is in the trash since 2026-01-01T00:00:00Z, which keeps it for another ",
			"note: volume default/lost (" + lost.id + ") has no record on this node, and no job can have it until it is " +
				"adopted: adopt " + n.pool.Root + "/default/" + lost.id + "\n",
			"note: snapshots of volume default/data (" + v.id + ") have 3",
		} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("no %q in %s", want, text)
			}
		}
		return nil
	})
}

// zfs runs zfs for what is below the class's root.
func (n *node) zfs(args ...string) {
	n.t.Helper()
	out, err := exec.Command(n.pool.Program, args...).CombinedOutput()
	must.NoError(n.t, err, must.Sprintf("zfs %q: %s", args, out))
}

// brought has "zfs receive" bring a copy of a volume as a dataset.
func (n *node) brought(v *nomadVolume, name string) (dataset string) {
	n.t.Helper()
	from := n.pool.Root + "/default/" + v.id + "@sent"
	dataset = n.pool.Root + "/" + name
	file := filepath.Join(n.t.(*testing.T).TempDir(), "stream")
	n.zfs("snapshot", from)
	stream, err := exec.Command(n.pool.Program, "send", from).Output()
	must.NoError(n.t, err)
	must.NoError(n.t, os.WriteFile(file, stream, 0o600))
	receive := exec.Command(n.pool.Program, "receive", "-u", dataset)
	receive.Stdin, err = os.Open(file)
	must.NoError(n.t, err)
	out, err := receive.CombinedOutput()
	must.NoError(n.t, err, must.Sprintf("%s", out))
	n.zfs("set", "refquota=32M", dataset)
	return dataset
}

func adoptedByHand(t *testing.T, n *node) {
	v := n.create("data", "uid", "1000")
	v.fill("a", mib)
	sum := v.sum()
	dataset := n.brought(v, "copy")
	v.put("a", "later")
	text := n.does("adopt", dataset).stdout
	must.StrContains(t, text, `capacity_max = "33554432"`)
	must.StrContains(t, n.does("list").stdout, "waits to become a volume")
	must.Eq(t, text, n.does("adopt", dataset).stdout) // once more
	var got specification
	n.answers(&got, "adopt", dataset)
	must.Eq(t, specification{"fast", "default", "copy", got.Node, 32 * mib, got.Key}, got)
	must.StrContains(t, text, got.Key)

	copied := n.specified(text)
	must.EqOp(t, "copy", copied.name)
	must.EqOp(t, sum, copied.sum())
	must.Eq(t, []string{"sent"}, n.all()["default/"+copied.id])
	must.NoError(t, copied.call("create")) // as at an agent's start
	n.refuses("is mounted at", "adopt", n.pool.Root+"/default/"+copied.id)
	n.refuses("it does not exist", "adopt", dataset)
	must.NoError(t, copied.call("delete")) // and it is one like others
	n.does("trash", "restore", "copy")
	v.has("a", "later")
}

func unfit(t *testing.T, n *node) {
	v := n.create("data")
	n.refuses("is not below the root of a class: those are "+n.pool.Root, "adopt", "other/data")
	n.refuses("is not below the root of a class", "adopt", n.pool.Root)
	n.refuses("it does not exist", "adopt", n.pool.Root+"/none")
	n.refuses("is mounted at "+v.path, "adopt", n.pool.Root+"/default/"+v.id)
	zfsfusetest.Unmount(t, v.path) // as after a boot
	n.refuses("it is volume default/data ("+v.id+") of this node, which has a record", "adopt",
		n.pool.Root+"/default/"+v.id)
	must.NoError(t, v.call("create"))

	dataset := n.brought(v, v.id)
	defer n.zfs("destroy", "-r", dataset)
	n.refuses("can't be the name of a volume: choose one with -name", "adopt", dataset)
	n.refuses("can't be the name of a volume", "adopt", dataset, "-name", "a/b")
	n.refuses("is not a namespace", "adopt", dataset, "-name", "a", "-namespace", ".trash")
	n.write(options + ` namespaces = ["ops"]`)
	n.refuses(`does not allow namespace "default"`, "adopt", dataset, "-name", "a")
	n.write(options)
	n.zfs("set", "refquota=4G", dataset)
	n.refuses("a capacity of 4GiB is more than class \"fast\" allows: use at most 2GiB", "adopt", dataset, "-name", "a")
	n.zfs("set", "refquota=none", dataset)
	n.refuses("has no refquota", "adopt", dataset, "-name", "a")
}

// Nomad's data_dir is lost, and with it the records and the identity of the node.
func recordLost(t *testing.T, n *node) {
	v := n.create("data")
	v.put("a", "text")
	zfsfusetest.Unmount(t, v.path)
	must.NoError(t, os.RemoveAll(n.dir+"/volumes"))
	must.NoError(t, os.Mkdir(n.dir+"/volumes", 0o755))
	dataset := n.pool.Root + "/default/" + v.id
	back := n.specified(n.does("adopt", dataset).stdout)
	must.EqOp(t, "data", back.name)
	must.NotEq(t, v.id, back.id)
	back.has("a", "text")
	must.Eq(t, map[string][]string{"default/" + back.id: {}}, n.all())
}

func adoptKilled(t *testing.T, n *node) {
	self, err := os.Executable()
	must.NoError(t, err)
	v := n.create("data")
	v.put("a", "text")
	for _, step := range []string{"checked", "adopted"} {
		dataset := n.brought(v, step)
		n.env = []string{killAt + "=" + step}
		must.EqOp(t, -1, n.with(self, "adopt", dataset).code, must.Sprint(step))
		n.env = nil
		n.specified(n.does("adopt", dataset).stdout).has("a", "text")
		must.NoError(t, exec.Command(n.pool.Program, "destroy", n.pool.Root+"/default/"+v.id+"@sent").Run())
	}
}
