// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

func TestMove(t *testing.T) { moves.on(t, "btrfs") }
func TestMove_WithZFSFuse(t *testing.T) {
	testsupport.Long(t, "zfs-fuse takes its time")
	moves.on(t, "zfs-fuse")
}

var moves = cases{
	"takes a volume to another node":         moved,
	"is refused before anything is changed":  unmoved,
	"takes a job with it, which runs so far": movedLive,
	"leaves a job stopped that was stopped":  movedAfterStop,
	"goes on where it was killed":            movedInParts,
	"can be taken back":                      movedBack,
}

// cluster is two nodes of a Nomad.
type cluster struct {
	*fakeNomad
	from, to *node
	shell    string
}

// cluster has n, and one on another pool, to which a shell script leads instead of ssh: the
// host is the directory of the node.
func (n *node) cluster() *cluster {
	n.t.Helper()
	to := n.second()
	shell := filepath.Join(n.dir, "shell")
	text := "#!/bin/sh\nhost=$1\nshift\neval \"exec $* -file $host/dataset.hcl\"\n"
	must.NoError(n.t, os.WriteFile(shell, []byte(text), 0o755))
	c := &cluster{newNomad(n.t, n, to), n, to, shell}
	n.env = []string{"NOMAD_ADDR=" + c.URL}
	to.env = n.env
	return c
}

func (c *cluster) create(name string) *volume {
	v := c.from.create(name)
	c.volumes[v.id] = v.known()
	return v
}

func (c *cluster) args(more ...string) []string {
	return append([]string{"move", "data", c.to.id, "-e", c.shell}, more...)
}

// arrived expects that Nomad has the volume on the other node alone, and returns it.
func (c *cluster) arrived() *volume {
	c.from.t.Helper()
	must.MapLen(c.from.t, 1, c.volumes)
	for _, known := range c.volumes {
		must.EqOp(c.from.t, c.to.id, known.NodeID)
		return &volume{n: c.to, id: known.ID, name: known.Name, namespace: known.Namespace, parameters: known.Parameters,
			path: known.HostPath}
	}
	return nil
}

func moved(t *testing.T, n *node) {
	c := n.cluster()
	v := c.create("data")
	v.fill("a", 3*mib)
	n.does("snapshot", "data", "mine")
	n.does("snapshot", "data", "move-mine")
	v.put("b", "text")
	sum := v.sum()
	got := n.does(c.args()...)
	there := c.arrived()
	must.EqOp(t, sum, there.sum())
	must.Eq(t, map[string][]string{"default/" + there.id: {}}, c.to.all())
	must.StrContains(t, got.stderr, "Volume default/data ("+there.id+") is on node")
	for name, snapshots := range n.all() {
		must.True(t, engine.InTrash(name), must.Sprint(name))
		must.SliceContainsSubset(t, snapshots, []string{"mine", "move-mine"})
		d, err := n.engine().Get(t.Context(), name)
		must.NoError(t, err)
		must.NotEq(t, "", d.Tags[engine.Expires])
		must.EqOp(t, "", d.Tags[engine.Moving])
	}
	must.StrContains(t, n.does(c.args()...).stderr, "is on node node-"+c.to.id[:4]+" already")
	must.EqOp(t, 1, c.creates)
}

func unmoved(t *testing.T, n *node) {
	c := n.cluster()
	v := c.create("data")
	job := &api.Job{ID: new("web"), Stop: new(false), JobModifyIndex: new(uint64(1)), Version: new(uint64(0))}
	c.jobs["web"], c.claims["data"] = job, "web"
	n.refuses("is used by allocation", c.args()...)
	delete(c.claims, "data")
	sleeper := exec.Command("sleep", testsupport.Mark())
	sleeper.Dir = v.path
	must.NoError(t, sleeper.Start())
	n.refuses("(sleep)", c.args()...)
	must.NoError(t, sleeper.Process.Kill())
	_ = sleeper.Wait()
	n.refuses(`there is no volume "other"`, "move", "other", c.to.id, "-e", c.shell)
	n.refuses(`0 nodes are "other"`, "move", "data", "other", "-e", c.shell)
	n.refuses("is on node node-"+n.id[:4]+" already", "move", "data", n.id, "-e", c.shell)
	n.refuses(`has no class "slow"`, c.args("-class", "slow")...)
	c.to.write(strings.Replace(options, "2GiB", "64MiB", 1) + ` namespaces = ["ops"]`)
	n.refuses(`class "fast" does not allow namespace "default"`, c.args()...)
	c.to.write(options)
	n.refuses("can't be run", "move", "data", c.to.id, "-e", "/nowhere/ssh")
	bin := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(bin, "ssh"), []byte("#!/bin/sh\necho \"ssh $*\" >&2\nexit 255\n"), 0o755))
	n.env = append(n.env, "PATH="+bin+":"+os.Getenv("PATH"))
	n.refuses("ssh -o ServerAliveInterval=15 -o BatchMode=yes ", "move", "data", c.to.id) // it never asks, and ends
	same := c.to.create("data")
	c.volumes[same.id] = same.known()
	n.refuses("has another volume \"data\"", c.args()...)
	must.MapLen(t, 1, c.to.all())
	must.EqOp(t, 0, c.creates)
}

func movedLive(t *testing.T, n *node) {
	c := n.cluster()
	v := c.create("data")
	v.fill("a", 12*mib)
	job := &api.Job{ID: new("web"), Stop: new(false), JobModifyIndex: new(uint64(1)), Version: new(uint64(0))}
	c.jobs["web"], c.claims["data"] = job, "web"

	// a task that writes until it is stopped, and for a moment longer
	script := `n=0; while [ -e "$0" ]; do n=$((n+1)); echo $n >> log; sleep 0.05; done; sleep 1; echo end >> log`
	running := filepath.Join(n.dir, "running")
	must.NoError(t, os.WriteFile(running, nil, 0o600))
	task := exec.Command("sh", "-c", script, running)
	task.Dir = v.path
	must.NoError(t, task.Start())
	ended := make(chan error, 1)
	go func() {
		for {
			c.mu.Lock()
			stopped := *c.jobs["web"].Stop
			c.mu.Unlock()
			if stopped {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		ended <- os.Remove(running)
	}()
	got := n.does(c.args("-live")...)
	must.NoError(t, <-ended)
	must.NoError(t, task.Wait())
	must.StrContains(t, got.stderr, "Job default/web is stopped.")
	must.StrContains(t, got.stderr, "Job default/web is started again.")
	must.False(t, *c.jobs["web"].Stop)
	log := read1(t, c.arrived().path+"/log")
	must.True(t, strings.HasSuffix(log, "\nend\n"), must.Sprint(log))
}

func movedAfterStop(t *testing.T, n *node) {
	c := n.cluster()
	v := c.create("data")
	v.put("a", "text")
	job := &api.Job{ID: new("web"), Stop: new(true), JobModifyIndex: new(uint64(1)), Version: new(uint64(0))}
	c.jobs["web"], c.claims["data"], c.ending = job, "web", 6
	n.does(c.args("-live")...)
	must.True(t, *c.jobs["web"].Stop)
	c.arrived().has("a", "text")
}

func movedInParts(t *testing.T, n *node) {
	c := n.cluster()
	v := c.create("data")
	v.fill("a", 2*mib)
	sum := v.sum()
	self, err := os.Executable()
	must.NoError(t, err)
	for _, step := range []string{"saved", "sent", "taken", "sent last", "created", "deleted"} {
		n.env = append(n.env, killAt+"="+step)
		got := n.with(nil, self, c.args()...)
		must.EqOp(t, -1, got.code, must.Sprint(step, got.stderr))
		n.env = n.env[:1]
	}
	n.does(c.args()...)
	must.EqOp(t, sum, c.arrived().sum())
	must.EqOp(t, 1, c.creates)
	must.MapLen(t, 1, c.to.all())
	must.MapLen(t, 1, n.all())
}

// restoring is "trash restore data" in this process.
func (n *node) restoring(ctx context.Context) error {
	s := &session{out: io.Discard, err: io.Discard}
	return trashCommand.with(ctx, s, []string{"restore", "data", "-file", n.file()})
}

func movedBack(t *testing.T, n *node) {
	c := n.cluster()
	v := c.create("data")
	v.put("a", "text")
	self, err := os.Executable()
	must.NoError(t, err)
	n.env = append(n.env, killAt+"=taken")
	must.EqOp(t, -1, n.with(nil, self, c.args()...).code)
	n.env = n.env[:1]
	must.ErrorContains(t, v.call("create"), "is gone") // an agent that starts has no empty volume instead
	must.StrContains(t, n.run("doctor").stdout, "to another node has not ended")
	n.refuses("is being moved", "trash", "empty", "data")
	unlock, err := n.engine().Lock(t.Context(), "move-"+v.id) // the move has begun again
	must.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	must.ErrorContains(t, n.restoring(short), "is being moved")
	unlock()
	if n.pool.Backend == "btrfs" { // a task that had found the volume just before
		for name := range n.all() {
			task := exec.Command("sleep", testsupport.Mark())
			task.Dir = filepath.Join(n.pool.Root, name)
			must.NoError(t, task.Start())
			got := n.run(c.args()...)
			must.NoError(t, task.Process.Kill())
			_ = task.Wait()
			must.StrContains(t, got.stderr, "(sleep)")
			must.One(t, got.code)
		}
	}
	n.does("trash", "restore", "data")
	must.NoError(t, v.call("create"))
	v.has("a", "text")
	n.does(c.args()...)
	c.arrived().has("a", "text")
}
