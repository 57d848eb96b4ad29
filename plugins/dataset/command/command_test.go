// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

func TestCommands(t *testing.T) { table.run(t) }

var table = cases{
	"list and check show the classes":           shown,
	"a rollback restores the old bytes":         rolledBack,
	"a rollback of a used volume is refused":    rollbackInUse,
	"a rollback of a claimed volume is refused": rollbackClaimed,
	"a rollback loses no later snapshot":        rollbackLoses,
	"an id wins over a name":                    named,
	"a name is refused while a class is hidden": hidden,
	"names are printable in a terminal":         escaped,
	"the trash is shown, restored and emptied":  inTrash,
	"each command can print JSON":               answered,
	"a received dataset is adopted":             adoptedByHand,
	"unfit datasets are refused":                unfit,
	"a volume whose record is lost is adopted":  recordLost,
	"adopt is killed at a step":                 adoptKilled,
	"check reports problems of volumes":         noted,
}

func shown(t *testing.T, n *node) {
	n.process = true
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
		case gone.id:
			must.EqOp(t, "trash", d.State)
		default:
			t.Fatal(d)
		}
	}
	text := n.does("list").stdout
	// the table has the style of lab:status
	must.RegexMatch(t, regexp.MustCompile(`(?m)^  STATE +NAME +ID +USED +SIZE +SNAPSHOTS +MESSAGE$`), text)
	for _, want := range []string{"class fast (" + n.pool.Root + "): can be used", "default/data", v.id, "64 MiB", "trash",
		"default/gone"} {
		must.StrContains(t, text, want)
	}

	text = n.does("check").stdout
	must.StrContains(t, text, n.file()+" is valid.")
	must.StrContains(t, text, "can be used")
	n.write("max_capacity = \"1MiB\"\n allow = [\"x\"]")
	got := n.run("check")
	must.One(t, got.code)
	must.StrContains(t, got.stderr, "default_capacity")
	must.StrContains(t, got.stderr, `allow "x" is not a parameter`)
	n.write(options)
	n.pool.Root += "-gone"
	n.write(options)
	got = n.run("check")
	must.StrContains(t, got.stderr, "1 of 1 classes can't be used")
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
	n.unchanged(func() {
		n.fails("already exists", "snapshot", "data", "before")
		n.fails("can't be the name of a snapshot", "snapshot", "data", "a/b")
		n.fails(`"other" was not found`, "rollback", "other", "before")
		n.fails("@after does not exist", "rollback", "data", "after")
	})
	must.StrContains(t, n.does("rollback", "default/data", "before").stderr, "All later changes are lost.")
	v.has("a", "old")
	must.False(t, testsupport.Exists(v.path+"/b"))
	must.NoError(t, v.call("create")) // Nomad repeats create when an agent starts
	v.has("a", "old")
}

// A mount in a task's mount namespace does not block the unmount on the host, so a rollback asks Nomad for allocations
// with the volume.
func rollbackClaimed(t *testing.T, n *node) {
	v := n.create("data")
	v.put("a", "old")
	n.does("snapshot", "data", "before")
	v.put("a", "new")
	status := api.AllocClientStatusRunning
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/volume/host/"+v.id || r.URL.Query().Get("namespace") != "default" {
			http.NotFound(w, r)
			return
		}
		must.NoError(t, json.NewEncoder(w).Encode(api.HostVolume{Allocations: []*api.AllocationListStub{
			{ID: "ended", JobID: "a", ClientStatus: api.AllocClientStatusComplete},
			{ID: "has-it", JobID: "b", ClientStatus: status},
		}}))
	}))
	defer server.Close()
	n.env = append(n.env, "NOMAD_ADDR="+server.URL)
	n.refuses("in use by allocation has-it of job \"b\"", "rollback", "data", "before")
	v.has("a", "new")
	status = api.AllocClientStatusComplete
	n.does("rollback", "data", "before")
	v.has("a", "old")
}

func rollbackInUse(t *testing.T, n *node) {
	v := n.create("data")
	v.put("a", "old")
	n.does("snapshot", "data", "before")
	v.put("a", "new")
	sleeper := exec.Command("sleep", testsupport.Mark())
	sleeper.Dir = v.path
	must.NoError(t, sleeper.Start())
	n.refuses("dataset "+n.pool.Root+"/default/"+v.id+" can't be unmounted", "rollback",
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
	dataset := n.pool.Root + "/default/" + v.id
	n.unchanged(func() {
		n.fails("; see: zfs list -t snapshot -r "+dataset, "rollback", "data", "one")
		n.fails("later snapshots would be lost", "rollback", "data", "one")
	})
	n.zfs("destroy", dataset+"@two")
	n.does("rollback", "data", "one")
	must.False(t, testsupport.Exists(v.path+"/a"))
}

// called changes the name in the volume's tags, even to a name that only an older version of the plugin allowed.
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
		n.zfs("destroy", n.pool.Root+"/default/"+v.id+"@s")
	}
	liar.called("data")
	n.refuses(`"data" matches default/data (`, "snapshot", "data", "s")
	liar.called(v.id)
	must.NoError(t, v.call("delete"))
	must.NoError(t, liar.call("delete"))
	must.StrContains(t, n.does("trash", "restore", v.id).stderr, "Volume default/data can be restored.")
}

func hidden(t *testing.T, n *node) {
	v := n.create("data")
	gone := n.create("gone")
	must.NoError(t, gone.call("delete"))
	n.write(options + "\n}\nclass \"lost\" {\n  root = \"" + n.pool.Root + "-lost\"")
	defer n.write(options)
	const why = ": class lost can't be listed: the dataset "
	n.unchanged(func() {
		n.fails(`failed to find volume "data"`+why, "snapshot", "data", "s")
		n.fails(`failed to find volume "default/data"`+why, "rollback", "default/data", "s")
		n.fails(`failed to find volume "gone"`+why, "trash", "restore", "gone")
		n.fails(`failed to find volume "gone"`+why, "trash", "empty", "gone")
		n.fails(`failed to find volume "`+n.id+`"`+why, "snapshot", n.id, "s")
	})
	n.does("snapshot", v.id, "s")
	got := n.does("trash", "list").stdout
	must.StrContains(t, got, "default/gone")
	must.StrContains(t, got, "class lost ("+n.pool.Root+"-lost): can't be used: ")
	n.does("trash", "empty", gone.id)
	must.Eq(t, map[string][]string{"default/" + v.id: {"s"}}, n.all())
}

func escaped(t *testing.T, n *node) {
	n.process = true
	const quoted = "default/ [2Jdata"
	v := n.create("data")
	v.called("\x1b[2Jdata")
	shows := func(want, text string) {
		t.Helper()
		must.StrContains(t, text, want)
		must.StrNotContains(t, text, "\x1b")
	}
	shows(quoted, n.does("list").stdout)
	shows(`\u001b[2Jdata`, n.does("list", "-json").stdout)
	shows("of volume "+quoted+" ("+v.id+"): ", n.run("snapshot", v.id, "/").stderr)
	must.NoError(t, v.call("delete"))
	shows(quoted, n.does("trash", "list").stdout)
	shows("Volume "+quoted+" can be restored", n.does("trash", "restore", v.id).stderr)
}

func answered(t *testing.T, n *node) {
	v := n.create("data")
	var made snapshot
	n.answers(&made, "snapshot", "data", "s1")
	must.Eq(t, snapshot{v.id, "s1"}, made)
	made = snapshot{}
	n.answers(&made, "rollback", "data", "s1")
	must.Eq(t, snapshot{v.id, "s1"}, made)

	var state []listed
	n.answers(&state, "check")
	must.SliceLen(t, 1, state)
	must.Eq(t, "fast", state[0].Class)
	must.Positive(t, state[0].Free)

	must.NoError(t, v.call("delete"))
	state = nil
	n.answers(&state, "trash", "list")
	must.SliceLen(t, 1, state)
	must.SliceLen(t, 1, state[0].Datasets)
	in := state[0].Datasets[0]
	must.Eq(t, []string{"trash", v.id, "data", "default"}, []string{in.State, in.ID, in.Name, in.Namespace})
	var waits specification
	n.answers(&waits, "trash", "restore", "data")
	must.Eq(t, specified("data", 64*mib, waits), waits)
	var gone map[string][]string
	n.answers(&gone, "trash", "empty")
	must.Eq(t, map[string][]string{"destroyed": {}}, gone)

	n.write("nonsense = 1\nrubbish = 2")
	n.refuses(`"nonsense"`, "check", "-json")
	n.write(options)
}

func inTrash(t *testing.T, n *node) {
	must.StrNotContains(t, n.does("trash", "list").stdout, "STATE")
	v := n.create("data", "uid", "1000")
	v.put("a", "text")
	sum := v.sum()
	n.does("snapshot", "data", "before")
	must.NoError(t, v.call("delete"))
	n.refuses(`"data" was not found`, "snapshot", "data", "s")
	must.RegexMatch(t, regexp.MustCompile(`(?m)^  trash +default/data +`+v.id+`\.\S+ .* for another `),
		n.does("trash", "list").stdout)
	n.refuses(`"other" was not found`, "trash", "restore", "other")
	n.refuses(`"other" was not found`, "trash", "empty", "other")
	n.refuses("usage: trash", "trash", "burn")

	e := n.engine()
	all, err := e.List(t.Context())
	must.NoError(t, err)
	at := slices.IndexFunc(all, func(d engine.Dataset) bool { return engine.InTrash(d.Name) })
	text := n.does("trash", "restore", "data").stdout
	must.ErrorContains(t, found{class{engine: e}, all[at]}.destroy(t.Context()), "it was restored in the meantime")
	must.StrContains(t, n.does("list").stdout, "waits to become a volume")
	n.does("trash", "empty") // does not destroy a restored volume
	other := nomadVolume{n: n, id: v.id, name: "data", namespace: "ops", parameters: read(t, text).Parameters}
	must.ErrorContains(t, other.call("create"), `the key in "adopt" is for namespace "default"`)
	back := n.specified(text)
	must.NotEq(t, v.id, back.id)
	must.EqOp(t, sum, back.sum())
	must.Eq(t, map[string][]string{"default/" + back.id: {"before"}}, n.all())
	must.NoError(t, back.call("create")) // Nomad repeats create when an agent starts
	must.ErrorContains(t, (&nomadVolume{n: n, id: v.id, name: "data2", namespace: "default",
		parameters: back.parameters}).call("create"),
		"has no dataset with the key")

	must.NoError(t, back.call("delete"))
	again := *back
	again.id = v.id // Nomad has shown the key with the volume, so the delete made the key invalid
	must.ErrorContains(t, again.call("create"), "has no dataset with the key")
	n.does("trash", "restore", "data")
	n.does("trash", "empty", "data")
	must.MapEmpty(t, n.all())
	for range 2 {
		must.NoError(t, n.create("data").call("delete"))
	}
	n.refuses(`"data" matches default/data (`, "trash", "restore", "data")
	n.does("trash", "empty")
	must.MapEmpty(t, n.all())
}

func noted(t *testing.T, n *node) {
	n.write(strings.Replace(options, "snapshot_reserve = 400", "snapshot_reserve = 50", 1))
	v := n.create("data")
	must.StrNotContains(t, n.does("check").stdout, "note: ")

	v.fill("a", 33*mib) // more than the reserve for snapshots: 50 % of 64 MiB
	n.does("snapshot", "data", "before")
	must.NoError(t, os.Remove(v.path+"/a"))
	lost := n.create("lost")
	must.NoError(t, os.Remove(n.dir+"/volumes/.outrider/"+lost.id+".json"))
	testsupport.Within(t, time.Minute, func() error { // ZFS updates the usage numbers with a delay
		text := n.does("check").stdout
		for _, want := range []string{
			"note: volume default/lost (" + lost.id + ") has no record on this node, and no job can use it: run " +
				"\"nomad-device-dataset adopt " + n.pool.Root + "/default/" + lost.id + "\"\n",
			"note: snapshots of volume default/data (" + v.id + ") use 3",
		} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("no %q in %s", want, text)
			}
		}
		return nil
	})
}

func (n *node) zfs(args ...string) {
	n.t.Helper()
	out, err := exec.Command(n.pool.Program, args...).CombinedOutput()
	must.NoError(n.t, err, must.Sprintf("zfs %q: %s", args, out))
}

// brought copies a volume into a new dataset by "zfs send" and "zfs receive", as an operator would.
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
	must.StrContains(t, n.does("list").stdout, "waits to become a volume")
	var got specification
	n.answers(&got, "adopt", dataset) // the second adopt prints a new key
	must.Eq(t, specified("copy", 32*mib, got), got)
	former := nomadVolume{n: n, id: v.n.id, name: "copy", namespace: "default", parameters: read(t, text).Parameters}
	must.ErrorContains(t, former.call("create"), "has no dataset with the key")

	copied := n.create("copy", "adopt", got.Parameters["adopt"])
	must.EqOp(t, "copy", copied.name)
	must.EqOp(t, sum, copied.sum())
	must.Eq(t, []string{"sent"}, n.all()["default/"+copied.id])
	must.NoError(t, copied.call("create")) // Nomad repeats create when an agent starts
	n.refuses("is mounted at", "adopt", n.pool.Root+"/default/"+copied.id)
	n.refuses("does not exist", "adopt", dataset)
	must.NoError(t, copied.call("delete")) // an adopted volume moves to the trash like any other
	n.does("trash", "restore", "copy")
	v.has("a", "later")
}

func unfit(t *testing.T, n *node) {
	v := n.create("data")
	n.unchanged(func() {
		n.fails("is not below the root of a class: the roots are "+n.pool.Root, "adopt", "other/data")
		n.fails("is not below the root of a class", "adopt", n.pool.Root)
		n.fails("does not exist", "adopt", n.pool.Root+"/none")
		n.fails("is mounted at "+v.path, "adopt", n.pool.Root+"/default/"+v.id)
	})
	zfsfusetest.Unmount(t, v.path) // as after a boot, when nothing is mounted
	n.refuses("it is already volume default/data ("+v.id+") of this node", "adopt",
		n.pool.Root+"/default/"+v.id)
	must.NoError(t, v.call("create"))

	dataset := n.brought(v, "copy")
	n.zfs("set", "refquota=none", dataset)
	n.refuses("has no refquota", "adopt", dataset)
	n.zfs("set", "refquota=4G", dataset) // more than the class allows, so create must fail
	s := read(t, n.does("adopt", dataset).stdout)
	err := (&nomadVolume{n: n, id: n.id, name: s.Name, namespace: s.Namespace, parameters: s.Parameters,
		capacity: 4 << 30}).call("create")
	must.ErrorContains(t, err, "a capacity of 4 GiB is more than class \"fast\" allows: use at most 2GiB")
	n.zfs("set", "refquota=32M", dataset)
	team := n.pool.Root + "/team-a"
	n.zfs("create", "-o", "canmount=off", team)
	defer n.zfs("destroy", "-r", team)
	n.zfs("rename", dataset, team+"/copy")
	dataset = team + "/copy"
	must.Eq(t, "team-a", read(t, n.does("adopt", dataset).stdout).Namespace)
}

// Nomad's data_dir is lost, with the records and the node's identity.
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
	v := n.create("data")
	v.put("a", "text")
	for _, step := range []string{"checked", "adopted"} {
		dataset := n.brought(v, step)
		n.env = []string{killAt + "=" + step}
		must.EqOp(t, -1, n.run("adopt", dataset).code, must.Sprint(step))
		n.env = nil
		n.specified(n.does("adopt", dataset).stdout).has("a", "text")
		must.NoError(t, exec.Command(n.pool.Program, "destroy", n.pool.Root+"/default/"+v.id+"@sent").Run())
	}
}
