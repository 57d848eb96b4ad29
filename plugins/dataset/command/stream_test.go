// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/stream"
)

func TestStreams(t *testing.T) { streams.on(t, "btrfs") }
func TestStreams_WithZFSFuse(t *testing.T) {
	testsupport.Long(t, "zfs-fuse takes its time")
	streams.on(t, "zfs-fuse")
}

var streams = cases{
	"a volume is sent, continued and adopted": sent2,
	"what can't be received is refused":       unfit,
	"a cut stream leaves nothing":             cut,
	"a killed receive is repeated":            killed,
}

// state is that of what a node has received.
func (n *node) state(id string) (r received) {
	n.t.Helper()
	must.NoError(n.t, json.Unmarshal([]byte(n.does("receive", "fast", "-state", id).stdout), &r))
	return r
}

func (n *node) receives(stream string) output {
	n.t.Helper()
	got := n.with([]byte(stream), binary(n.t), "receive", "fast")
	must.Zero(n.t, got.code, must.Sprint(got.stderr))
	return got
}

// second is a node with another pool of the same kind.
func (n *node) second() *node {
	n.t.Helper()
	return newNode(n.t, n.other())
}

func sent2(t *testing.T, n *node) {
	other := n.second()
	v := n.create("data", "uid", "1000")
	v.fill("a", 5*mib)
	v.put("b", "old")
	full := n.does("send", "data")
	_, made, _ := strings.Cut(full.stderr, "Snapshot ")
	made, _, _ = strings.Cut(made, " ")
	must.StrHasPrefix(t, "send-", made)

	before := v.sum()
	other.receives(full.stdout)
	must.Eq(t, map[string][]string{".received/" + v.id: {made}}, other.all())
	must.Eq(t, []string{made}, other.state(v.id).Snapshots)

	v.fill("c", mib)
	v.put("b", "new")
	must.NoError(t, os.Rename(v.path+"/a", v.path+"/d"))
	n.does("snapshot", "data", "second")
	changes := n.does("send", "data@second", "-since", made)
	must.Less(t, len(full.stdout)/3, len(changes.stdout))
	specification := other.receives(changes.stdout).stdout
	must.Eq(t, []string{made, "second"}, other.state(v.id).Snapshots)

	// it is what the snapshot has, not what has become of the volume since
	want := v.sum()
	v.put("b", "newest")
	there := other.specified(specification)
	must.EqOp(t, want, there.sum())
	must.Eq(t, map[string][]string{"default/" + there.id: {made, "second"}}, other.all())
	d, err := other.engine().Get(t.Context(), "default/"+there.id)
	must.NoError(t, err)
	must.EqOp(t, 64*mib, d.Limits.Data)
	must.EqOp(t, "data", d.Tags[engine.Volume])

	// and is a volume like others
	other.does("rollback", "data", made, "-discard-later")
	must.EqOp(t, before, there.sum())
	back := other.does("send", "data@"+made).stdout
	n.receives(back)
	must.Eq(t, []string{made}, n.state(there.id).Snapshots)
	must.EqOp(t, "newest", read1(t, v.path+"/b"))
	n.does("receive", "fast", "-forget", there.id)
	must.SliceEmpty(t, n.state(there.id).Snapshots)
}

func read1(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(text)
}

func unfit(t *testing.T, n *node) {
	v := n.create("data")
	n.does("snapshot", "data", "one")
	full := n.does("send", "data@one").stdout
	v.put("a", "text")
	n.does("snapshot", "data", "two")
	changes := n.does("send", "data@two", "-since", "one").stdout
	edited := func(text string, edit func(*stream.Header)) []byte {
		line, rest, _ := strings.Cut(text, "\n")
		var h stream.Header
		must.NoError(t, json.Unmarshal([]byte(line), &h))
		edit(&h)
		b, err := json.Marshal(h)
		must.NoError(t, err)
		return append(append(b, '\n'), rest...)
	}
	n.refusesInput([]byte(full), `has no class "slow": there are fast`, "receive", "slow")
	n.refusesInput(nil, "nothing was sent", "receive", "fast")
	n.refusesInput([]byte("something else\n"), "this is no stream of", "receive", "fast")
	n.refusesInput(edited(full, func(h *stream.Header) { h.Backend = "xfs" }), "the stream is of xfs", "receive", "fast")
	n.refusesInput(edited(full, func(h *stream.Header) { h.ID = "../x" }), "names no volume", "receive", "fast")
	n.refusesInput(edited(full, func(h *stream.Header) { h.Namespace = ".." }), "names no volume", "receive", "fast")
	n.refusesInput(edited(full, func(h *stream.Header) { h.Snapshot = "a/../b" }), "is not a name of a snapshot",
		"receive", "fast")
	n.refusesInput(edited(full, func(h *stream.Header) { h.Capacity = 1 << 50 }), "raise max_capacity", "receive", "fast")
	n.refusesInput([]byte(changes), "is in use on this node, and no stream changes it", "receive", "fast")
	other := n.second()
	other.refusesInput([]byte(changes), `has changes since snapshot "one", which is not here`, "receive", "fast")
	other.receives(full)
	other.refusesInput([]byte(full), "was received already", "receive", "fast")
	other.receives(changes)
	other.refusesInput([]byte(changes), `snapshot "two" of volume`, "receive", "fast")

	n.refuses(`has no snapshot "three"`, "send", "data@three")
	n.refuses(`has no snapshot "three"`, "send", "data@two", "-since", "three")
	n.refuses("is not the id of a volume", "receive", "fast", "-state", "../x")
}

func cut(t *testing.T, n *node) {
	other := n.second()
	v := n.create("data")
	v.fill("a", mib)
	n.does("snapshot", "data", "one")
	full := []byte(n.does("send", "data@one").stdout)
	v.fill("b", mib)
	n.does("snapshot", "data", "two")
	changes := []byte(n.does("send", "data@two", "-since", "one").stdout)
	for i, whole := range [][]byte{full, changes} {
		for _, left := range []int{1, 4, 8, 9, 100,
			len(whole) / 2} { // without the end, without the last bytes of the file system's
			other.refusesInput(whole[:len(whole)-left], "the stream ends too early", "receive", "fast")
		}
		changed := bytes.Clone(whole)
		changed[len(changed)/2] ^= 1
		got := other.with(changed, binary(t), "receive", "fast")
		must.One(t, got.code)
		must.SliceLen(t, i, other.state(v.id).Snapshots)
		other.receives(string(whole))
	}
	there := other.specified(other.respecify(v.id))
	must.EqOp(t, v.sum(), there.sum())
}

// respecify is the specification of what was received before.
func (n *node) respecify(id string) string {
	return "name = \"data\"\nparameters {\n  class = \"fast\"\n  adopt = \"" + n.state(id).Key + "\"\n"
}

func killed(t *testing.T, n *node) {
	other := n.second()
	v := n.create("data")
	v.fill("a", 2*mib)
	n.does("snapshot", "data", "one")
	full := n.does("send", "data@one").stdout
	v.fill("b", 2*mib)
	n.does("snapshot", "data", "two")
	changes := n.does("send", "data@two", "-since", "one").stdout
	self, err := os.Executable()
	must.NoError(t, err)
	for i, whole := range []string{full, changes} {
		complete := []string{"one", "two"}[:i+1]
		for _, part := range []int{0, 1, 50, 99} { // percent of the stream that came before
			other.interrupted(whole[:len(whole)/100*part])
			must.SliceLen(t, i, other.state(v.id).Snapshots)
		}
		for _, step := range []string{"received", "tagged", "resized", "renamed"} {
			if i == 1 && step != "received" {
				continue // nothing is done after it
			}
			other.env = []string{killAt + "=" + step}
			must.EqOp(t, -1, other.with([]byte(whole), self, "receive", "fast").code, must.Sprint(step))
			other.env = nil
			if have := other.state(v.id).Snapshots; step == "renamed" || i == 1 {
				must.Eq(t, complete, have)
			} else {
				must.SliceLen(t, i, have)
			}
		}
		must.Eq(t, complete, other.state(v.id).Snapshots)
	}
	there := other.specified(other.respecify(v.id))
	must.EqOp(t, v.sum(), there.sum())
	must.Eq(t, map[string][]string{"default/" + there.id: {"one", "two"}}, other.all())
}

// interrupted sends a part of a stream, and kills the receiver then.
func (n *node) interrupted(part string) {
	n.t.Helper()
	cmd := exec.Command(binary(n.t), "receive", "fast", "-file", n.file())
	in, err := cmd.StdinPipe()
	must.NoError(n.t, err)
	must.NoError(n.t, cmd.Start())
	_, err = in.Write([]byte(part))
	must.NoError(n.t, err)
	time.Sleep(50 * time.Millisecond)
	must.NoError(n.t, cmd.Process.Signal(syscall.SIGKILL))
	_ = cmd.Wait()
	in.Close()
}
