// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

var moveCommand = command{
	name: "move", help: "move a volume to another node",
	usage: "VOLUME NODE [-live] [-class CLASS] [-host HOST] [-e COMMAND]", least: 2, most: 2,
	about: `Moves a volume of this node to another one: sends it, takes it away from jobs, sends what
has changed since, makes the volume there with Nomad, and puts the one here into the
trash. Killed at any step, it is called again and goes on.

It is refused while a task uses the volume. With -live, the volume is sent while the job
runs, which is stopped for the last part only and then started again: it follows the
volume. NODE is a node's name or id; its host is reached with ssh, as root.`,
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		var m move
		f.BoolVar(&m.live, "live", false, "stop the jobs that use the volume, and start them again afterwards")
		f.StringVar(&m.class, "class", "", "the class on the other node; by default the same as here")
		f.StringVar(&m.remote.host, "host", "", "the other node's host for ssh; by default its address in Nomad")
		f.StringVar(&m.remote.shell, "e", usualShell, "the remote shell with its options, as rsync has it")
		f.StringVar(&m.remote.file, "remote-file", "", "the operator's file there; by default "+policy.Path)
		f.StringVar(&m.remote.program, "program", "", "the plugin's binary on the other host; by default its path is as here")
		f.StringVar(&m.address, "address", "", "of Nomad's API; by default NOMAD_ADDR, or this node's agent")
		f.StringVar(&m.tokenFile, "token-file", "", "a file with a token for it; by default NOMAD_TOKEN")
		return func(ctx context.Context, s *session, args []string) error {
			m.session = s
			return m.run(ctx, args[0], args[1])
		}
	},
}

const (
	// movePrefix begins the names of the snapshots that a move sends.
	movePrefix = "move-"

	// A live move sends what has changed until it is this little, or was sent this fast, or
	// becomes no less.
	littleBytes = 8 << 20
	littleTime  = time.Second
	mostRounds  = 10

	// claimTime is how long a stopped job may take to end.
	claimTime = 5 * time.Minute
)

// move is one call of the command. All that it needs of a former one is in the datasets and in
// Nomad.
type move struct {
	*session
	remote             remote
	nomad              *nomad
	address, tokenFile string
	live               bool
	class              string

	node   *api.NodeListStub // the other one
	volume found             // the dataset here: a volume, or in the trash once it is taken from jobs
	plan   plan
}

// plan is the tag Moving of the dataset here.
type plan struct {
	Node  string   `json:"node"`
	Class string   `json:"class"`
	Key   string   `json:"key,omitempty"`  // the other node's, by which the volume there becomes what was sent
	Jobs  []string `json:"jobs,omitempty"` // those that were stopped: "<namespace>/<id>"
}

func (m *move) run(ctx context.Context, volume, node string) (err error) {
	if m.nomad, err = connect(m.address, m.tokenFile); err != nil {
		return err
	}
	defer m.nomad.Close()
	if m.node, err = m.nomad.node(ctx, node); err != nil {
		return err
	}
	if err := m.find(ctx, volume); err != nil {
		return err
	}
	if m.volume.Name == "" {
		return m.arrived(ctx, volume)
	}
	unlock, err := m.volume.lockMove(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.prepare(ctx); err != nil {
		return err
	}
	there, err := m.there(ctx)
	if err != nil {
		return err
	}
	if there == nil {
		if !engine.InTrash(m.volume.Name) {
			if err := m.take(ctx); err != nil {
				return err
			}
		}
		at("taken")
		if err := m.volume.unused(ctx); err != nil { // one that had found it just before, on btrfs
			return err
		}
		if _, err := m.send(ctx, "the last part"); err != nil {
			return err
		}
		at("sent last")
		if there, err = m.create(ctx); err != nil {
			return err
		}
		at("created")
	}
	return m.finish(ctx, there)
}

// lockMove keeps others from moving a volume, or from taking one that is being moved out of the trash.
func (f found) lockMove(ctx context.Context) (unlock func(), err error) {
	if unlock, err = f.lock(ctx, "move-"+f.id()); err != nil {
		return nil, fmt.Errorf("volume %s is being moved by another process: %w", f, err)
	}
	return unlock, nil
}

// find looks for the dataset here: the volume, or what an unfinished move has of it.
func (m *move) find(ctx context.Context, volume string) error {
	f, err := m.oneOrNone(ctx, volume, func(f found) bool {
		return f.live() || engine.InTrash(f.Name) && f.Tags[engine.Moving] != ""
	})
	if err == nil && f.Name != "" {
		m.volume = f
	}
	return err
}

// arrived is for a move that a former call has finished.
func (m *move) arrived(ctx context.Context, volume string) error {
	v, err := m.nomad.volumeNamed(ctx, m.node.ID, "", volume)
	if err != nil {
		return err
	}
	if v == nil {
		return fmt.Errorf("there is no volume %q: \"list\" shows what there is", volume)
	}
	m.say("Volume %s/%s (%s) is on node %s already.", v.Namespace, v.Name, v.ID, m.node.Name)
	return nil
}

// prepare refuses what can't be moved before anything changes, and saves where it goes.
func (m *move) prepare(ctx context.Context) error {
	former := plan{}
	if text := m.volume.Tags[engine.Moving]; text != "" {
		if err := json.Unmarshal([]byte(text), &former); err != nil {
			return fmt.Errorf("the record of the move that has begun can't be read: %w", err)
		}
	}
	if former.Node != "" && former.Node != m.node.ID && engine.InTrash(m.volume.Name) {
		return fmt.Errorf("volume %s is on its way to node %s: end that move first, or \"trash restore %s\"", m.volume,
			former.Node, m.volume.id())
	}
	if m.class == "" {
		m.class = m.volume.label
		if former.Node == m.node.ID {
			m.class = former.Class
		}
	}
	m.plan = plan{Node: m.node.ID, Class: m.class, Jobs: former.Jobs}
	if former.Node == m.node.ID && former.Class == m.class {
		m.plan.Key = former.Key
	}
	m.remote.complete(m.node)
	return m.checkNode(ctx)
}

// checkNode asks whether the other node can have the volume.
func (m *move) checkNode(ctx context.Context) error {
	switch {
	case m.node.ID == m.volume.Tags[engine.Node]:
		return fmt.Errorf("volume %s is on node %s already", m.volume, m.node.Name)
	case m.node.Status != "ready":
		return fmt.Errorf("node %s is %s: it must be ready", m.node.Name, m.node.Status)
	}
	full, err := m.nomad.attributes(ctx, m.node.ID)
	if err != nil {
		return err
	}
	if full["plugins.host_volume.dataset.version"] == "" {
		return fmt.Errorf("node %s has no host volume plugin \"dataset\": install it there first", m.node.Name)
	}
	same, err := m.nomad.volumeNamed(ctx, m.node.ID, "", m.volume.Tags[engine.Volume])
	if err != nil {
		return err
	}
	if same != nil && (m.plan.Key == "" || same.Parameters[engine.Adopt] != m.plan.Key) {
		return fmt.Errorf("node %s has another volume %q (%s), and a name is unique on a node", m.node.Name, same.Name,
			same.ID)
	}
	if same != nil {
		return nil
	}
	old, err := m.nomad.volume(ctx, m.volume)
	if err != nil {
		return err
	}
	capacity := m.volume.Limits.Data
	return m.remote.accepts(ctx, m.class, policy.Request{ID: old.ID, Name: old.Name, Namespace: old.Namespace,
		Node: m.node.ID, Min: capacity, Max: capacity, Parameters: elsewhere(old, m.class)})
}

// there is the volume on the other node, nil if it is not there.
func (m *move) there(ctx context.Context) (*api.HostVolume, error) {
	if m.plan.Key == "" {
		return nil, nil
	}
	return m.nomad.volumeNamed(ctx, m.node.ID, m.volume.Tags[engine.Namespace], m.volume.Tags[engine.Volume])
}

// save writes the plan to the dataset.
func (m *move) save(ctx context.Context) error {
	text, err := json.Marshal(m.plan)
	if err != nil {
		return err
	}
	return m.tag(ctx, engine.Tags{engine.Moving: string(text)})
}

// tag sets tags of the dataset here under its lock, as whatever else changes it has it too.
func (m *move) tag(ctx context.Context, tags engine.Tags) error {
	unlock, err := m.volume.lock(ctx, m.volume.id())
	if err != nil {
		return err
	}
	defer unlock()
	return m.volume.engine.Tag(ctx, m.volume.Name, tags)
}

// take sends the volume while it can be used, stops what uses it, and puts it where no task
// finds it: into the trash, that never gives it up while it is being moved.
func (m *move) take(ctx context.Context) error {
	old, err := m.nomad.volume(ctx, m.volume)
	if err != nil {
		return err
	}
	users, err := m.nomad.users(ctx, old)
	if err != nil {
		return err
	}
	if !m.live {
		if len(users) > 0 {
			return fmt.Errorf("volume %s is used by %s: stop that, or add -live", m.volume, several(users.names()))
		}
		if err := m.volume.unused(ctx); err != nil {
			return err
		}
	}
	if err := m.save(ctx); err != nil {
		return err
	}
	at("saved")
	var former int64
	for round := 1; round <= mostRounds; round++ {
		sent, err := m.send(ctx, fmt.Sprintf("part %d", round))
		if err != nil {
			return err
		}
		few := sent.bytes <= littleBytes || sent.took <= littleTime || round > 1 && sent.bytes > former*3/4
		if former = sent.bytes; !m.live || few {
			break
		}
	}
	at("sent")
	if m.live {
		if err := m.stop(ctx, old); err != nil {
			return err
		}
	}
	if err := m.retire(ctx); err != nil {
		return fmt.Errorf("volume %s can't be taken from its jobs: %w", m.volume, err)
	}
	return m.find(ctx, m.volume.id())
}

// retire puts the volume into the trash. Only the file system knows for certain that nothing
// uses it any more.
func (m *move) retire(ctx context.Context) error {
	v, unlock, err := m.volume.locked(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for started := time.Now(); ; {
		err := v.engine.Discard(ctx, v.Name, 0)
		if !errors.Is(err, engine.ErrInUse) || !m.live || time.Since(started) > claimTime {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// pause is between two looks at what is to change.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(200 * time.Millisecond):
		return nil
	}
}

// stop stops the jobs that use the volume, and waits until nothing does.
func (m *move) stop(ctx context.Context, old *api.HostVolume) error {
	users, err := m.nomad.users(ctx, old)
	if err != nil {
		return err
	}
	var running []string // one that somebody has stopped, and that is ending, is not started again
	for _, job := range users.jobs() {
		stopped, err := m.nomad.stopped(ctx, job)
		if err != nil {
			return err
		}
		if stopped {
			continue
		}
		running = append(running, job)
		if !slices.Contains(m.plan.Jobs, job) {
			m.plan.Jobs = append(m.plan.Jobs, job)
		}
	}
	if err := m.save(ctx); err != nil {
		return err
	}
	for _, job := range running {
		if err := m.nomad.stop(ctx, job); err != nil {
			return err
		}
		m.say("Job %s is stopped.", job)
	}
	for started := time.Now(); ; {
		users, err := m.nomad.users(ctx, old)
		if err == nil && len(users) > 0 {
			err = fmt.Errorf("volume %s is still used by %s", m.volume, several(users.names()))
		}
		if err == nil {
			err = m.volume.unused(ctx)
		}
		if err == nil {
			return nil
		}
		if time.Since(started) > claimTime {
			return fmt.Errorf("after %s, %w", claimTime, err)
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// sent is what one stream was.
type sent struct {
	bytes int64
	took  time.Duration
}

// send makes a snapshot and sends what the other node does not have of it. What a former move that
// was killed has sent may only now be complete there: then it begins again, from that.
func (m *move) send(ctx context.Context, what string) (sent, error) {
	for {
		there, err := m.remote.state(ctx, m.class, m.volume.id())
		if err != nil {
			return sent{}, err
		}
		done, err := m.sendAfter(ctx, there, what)
		if err == nil {
			return done, nil
		}
		now, stateErr := m.remote.state(ctx, m.class, m.volume.id())
		if stateErr != nil || slices.Equal(now.Snapshots, there.Snapshots) {
			return sent{}, err
		}
	}
}

// sendAfter is send where the other node has this.
func (m *move) sendAfter(ctx context.Context, there received, what string) (sent, error) {
	have, err := m.volume.engine.Snapshots(ctx, m.volume.Name)
	if err != nil {
		return sent{}, err
	}
	since := ""
	for _, s := range have {
		if slices.Contains(there.Snapshots, s.Name) {
			since = s.Name
		}
	}
	if since == "" && len(there.Snapshots) > 0 {
		return sent{}, fmt.Errorf("node %s has something of volume %s that can't be continued: run "+
			"\"receive %s -forget %s\" there", m.node.Name, m.volume, m.class, m.volume.id())
	}
	name, started := stamped(movePrefix), time.Now()
	unlock, err := m.volume.lock(ctx, m.volume.id())
	if err != nil {
		return sent{}, err
	}
	err = m.volume.snapshot(ctx, name)
	unlock()
	if err != nil {
		return sent{}, err
	}
	count := &counter{}
	state, err := m.remote.receive(ctx, m.class, func(w io.Writer) error {
		count.w = w
		return m.volume.send(ctx, name, since, count)
	})
	if err != nil {
		return sent{}, err
	}
	took := time.Since(started)
	m.say("Volume %s: %s, %s in %.2f s.", m.volume, what, size(count.n), took.Seconds())
	m.plan.Key = state.Key
	if err := m.save(ctx); err != nil {
		return sent{}, err
	}
	return sent{count.n, took}, m.volume.pruneMoves(ctx, name)
}

// madeByMove reports whether a snapshot is one of a move, and not one that a person has called so.
func madeByMove(name string) bool {
	at, ok := strings.CutPrefix(name, movePrefix)
	_, err := time.Parse(stampForm, at)
	return ok && err == nil
}

// pruneMoves removes the snapshots that a move has made, except for the one that the next
// part begins with.
func (f found) pruneMoves(ctx context.Context, except string) error {
	unlock, err := f.lock(ctx, f.id())
	if err != nil {
		return err
	}
	defer unlock()
	all, err := f.engine.Snapshots(ctx, f.Name)
	if err != nil {
		return err
	}
	for _, s := range all {
		if madeByMove(s.Name) && s.Name != except {
			if err := f.engine.DestroySnapshot(ctx, f.Name, s.Name); err != nil && !errors.Is(err, engine.ErrHasClones) {
				return err
			}
		}
	}
	return nil
}

// create has Nomad make the volume there, of what was sent.
func (m *move) create(ctx context.Context) (*api.HostVolume, error) {
	old, err := m.nomad.volume(ctx, m.volume)
	if err != nil {
		return nil, err
	}
	started := time.Now()
	there, err := m.nomad.create(ctx, old, m.volume.Limits.Data, m.node.ID, m.class, m.plan.Key)
	if err != nil {
		return nil, fmt.Errorf("the volume was not made on node %s: %w", m.node.Name, err)
	}
	m.say("Volume %s/%s (%s) is on node %s; Nomad took %.1f s for it.", there.Namespace, there.Name, there.ID, m.node.Name,
		time.Since(started).Seconds())
	return there, nil
}

// finish removes the volume here, starts the jobs again, and lets the trash have the dataset.
func (m *move) finish(ctx context.Context, there *api.HostVolume) error {
	if err := m.nomad.delete(ctx, m.volume); err != nil {
		return err
	}
	at("deleted")
	for _, job := range m.plan.Jobs {
		started, err := m.nomad.start(ctx, job)
		if err != nil {
			return err
		}
		if started {
			m.say("Job %s is started again.", job)
		}
	}
	tags := engine.Tags{engine.Moving: "", engine.Expires: ""}
	until := "until it is emptied"
	if m.volume.OnDelete != "retain" {
		expires := time.Now().Add(m.volume.TrashTTL.Duration())
		tags[engine.Expires] = expires.UTC().Format(time.RFC3339)
		until = "until " + when(expires)
	}
	if err := m.remote.removeSnapshots(ctx, there.ID, movePrefix+"*"); err != nil {
		m.say("Snapshots of the move stay on node %s, where they are of no use: %v", m.node.Name, err)
	}
	if err := m.tag(ctx, tags); err != nil {
		return err
	}
	m.say("What it was here is in the trash %s.", until)
	return nil
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
