// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

var doctorCommand = command{
	name: "doctor", help: "look for what is not as it should be",
	usage: "[-address URL] [-token-file FILE]",
	about: `Looks at the operator's file, each class, what interrupted work has left, and whether Nomad
has the same volumes and slots. Nothing is changed. The exit code is 1 if anything is found.`,
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		address := f.String("address", "", "of this node's agent; by default NOMAD_ADDR, or http://127.0.0.1:4646")
		tokenFile := f.String("token-file", "", "a file with a token for it; by default NOMAD_TOKEN")
		return func(ctx context.Context, s *session, _ []string) error {
			d := &diagnosis{session: s, now: time.Now()}
			d.examine(ctx, *address, *tokenFile)
			if d.found == 0 {
				fmt.Fprintln(s.out, "Nothing is wrong.")
				return nil
			}
			return fmt.Errorf("problems found: %d", d.found)
		}
	},
}

// diagnosis is one look at a node.
type diagnosis struct {
	*session
	now   time.Time
	found int
}

// problem reports something and what to do about it.
func (d *diagnosis) problem(format string, args ...any) {
	d.found++
	fmt.Fprintf(d.out, "- "+format+"\n", args...)
}

func (d *diagnosis) examine(ctx context.Context, address, tokenFile string) {
	classes, err := d.classes()
	if err != nil {
		d.problem("%v", err)
	}
	var all []found
	usable := err == nil
	for _, c := range classes {
		if err := c.engine.Check(ctx); err != nil {
			d.problem("class %s can't be used: %v", c.label, err)
			usable = false
			continue
		}
		list, err := c.engine.List(ctx)
		if err != nil {
			d.problem("the datasets of class %s can't be listed: %v", c.label, err)
			usable = false
			continue
		}
		d.space(ctx, c)
		for _, one := range list {
			f := found{c, one}
			all = append(all, f)
			d.dataset(ctx, f)
		}
		if b, ok := c.engine.Backend.(interface {
			Stale(context.Context) ([]string, error)
		}); ok {
			stale, err := b.Stale(ctx)
			if err != nil {
				stale = append(stale, err.Error())
			}
			for _, text := range stale {
				d.problem("class %s: %s", c.label, text)
			}
		}
	}
	d.agent(ctx, address, tokenFile, all, usable)
}

func (d *diagnosis) space(ctx context.Context, c class) {
	const least = 5 // percent
	space, err := c.engine.Space(ctx)
	switch {
	case err != nil:
		d.problem("class %s: %v", c.label, err)
	case space.Free < space.Size/100*least:
		d.problem("class %s has %s of %s free: empty the trash, remove snapshots, or add a disk", c.label, size(space.Free),
			size(space.Size))
	}
}

// late is how long the device plugin may take to do what is due.
const late = 10 * time.Minute

// dataset looks at what interrupted or missing work has left of one.
func (d *diagnosis) dataset(ctx context.Context, f found) {
	switch state(f.Dataset) {
	case "incomplete":
		if unlock, err := f.engine.LockNew(ctx, f.Name); err == nil {
			unlock()
			d.problem("%s of class %s was left by a process that was killed: the device plugin removes it when it runs", f.Name,
				f.label)
		}
	case "trash":
		expires, err := time.Parse(time.RFC3339, f.Tags[engine.Expires])
		switch {
		case f.Tags[engine.Moving] != "":
			d.problem("the move of volume %s to another node has not ended, and no job can use the volume: run the move "+
				"again, or \"trash restore %s\"", f, trashName(f))
		case f.Tags[engine.Expires] != "" && err != nil:
			d.problem("%s in the trash of class %s has no valid time: remove it with \"trash empty %s\"", trashName(f), f.label,
				trashName(f))
		case err == nil && d.now.After(expires.Add(late)):
			d.problem("%s should have left the trash of class %s at %s: does the device plugin run?", trashName(f), f.label,
				when(expires))
		}
	case "volume":
		if !f.live() {
			d.problem("dataset %s of class %s has the identity of volume %s", f.Name, f.label, f.id())
		}
		if f.Tags[engine.Moving] != "" {
			d.problem("a move of volume %s has begun and not ended: run it again, or ignore this if the volume is to stay", f)
		}
		if f.Limits.Snapshots > 0 && f.Usage.Snapshots > f.Limits.Snapshots/100*95 {
			d.problem("snapshots of volume %s have %s of the %s that they may have: with all of it used, nothing can be written",
				f, size(f.Usage.Snapshots), size(f.Limits.Snapshots))
		}
	}
}

// self is what an agent says of itself (/v1/agent/self).
type self struct {
	Config struct {
		PluginDir string
		DataDir   string
		Client    struct {
			HostVolumesDir      string
			HostVolumePluginDir string
		}
	} `json:"config"`
	Stats struct {
		Client struct {
			Node string `json:"node_id"`
		} `json:"client"`
	} `json:"stats"`
}

func (n *nomad) self(ctx context.Context) (agent self, err error) {
	_, err = n.Raw().Query("/v1/agent/self", &agent, read(ctx, ""))
	return agent, err
}

// agent compares with what Nomad has.
func (d *diagnosis) agent(ctx context.Context, address, tokenFile string, all []found, usable bool) {
	n, err := connect(address, tokenFile)
	if err != nil {
		d.problem("Nomad's API can't be used: %v", err)
		return
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	agent, err := n.self(ctx)
	if err != nil {
		d.problem("Nomad's API does not answer: %v", err)
		return
	}
	node := agent.Stats.Client.Node
	if node == "" {
		d.problem("the agent at %s is no client: name the one of this node with -address", n.Address())
		return
	}
	d.faces(agent)
	d.volumes(ctx, n, node, all, usable)
	d.slots(ctx, n, node, all)
}

// faces looks whether both faces of the plugin are there, and are the same.
func (d *diagnosis) faces(agent self) {
	plugins := agent.Config.Client.HostVolumePluginDir
	if plugins == "" {
		plugins = filepath.Join(agent.Config.DataDir, "host_volume_plugins")
	}
	device := filepath.Join(agent.Config.PluginDir, "nomad-device-dataset")
	volume := filepath.Join(plugins, "dataset")
	one, err := os.Stat(device)
	if err != nil {
		d.problem("the agent has no device plugin %s, so there are no slots, no snapshots by schedule, and no end of the "+
			"trash", device)
	}
	other, volumeErr := os.Stat(volume)
	if volumeErr != nil {
		d.problem("the agent has no host volume plugin %s, so there are no volumes: ln -s %s %s", volume, device, volume)
	}
	if err == nil && volumeErr == nil && !os.SameFile(one, other) {
		d.problem("%s and %s are different files: make the second a link to the first", device, volume)
	}
	if exe, err := os.Stat("/proc/self/exe"); err == nil && one != nil && !os.SameFile(one, exe) {
		d.problem("this program is not %s: use that one, since the versions could differ", device)
	}
}

// volumes compares the volumes that Nomad has on this node.
func (d *diagnosis) volumes(ctx context.Context, n *nomad, node string, all []found, usable bool) {
	list, _, err := n.HostVolumes().List(&api.HostVolumeListRequest{NodeID: node}, read(ctx, "*"))
	if err != nil {
		d.problem("Nomad's volumes can't be listed: %v", err)
		return
	}
	known := map[string]bool{}
	for _, v := range list {
		if v.PluginID != "dataset" {
			continue
		}
		known[v.ID] = true
		here := false
		for _, f := range all {
			here = here || f.live() && f.id() == v.ID
		}
		if !here && usable {
			d.problem("volume %s/%s (%s) of Nomad has no dataset: restore it from the trash (-in-place), or delete the volume",
				v.Namespace, v.Name, v.ID)
		}
		if v.State != api.HostVolumeStateReady {
			d.problem("volume %s/%s (%s) is %s in Nomad: see the agent's log", v.Namespace, v.Name, v.ID, v.State)
		}
	}
	for _, f := range all {
		if f.live() && !known[f.id()] {
			d.problem("Nomad has no volume %s on this node, or the token may not see it, but there is its dataset in class %s",
				f, f.label)
		}
	}
}

// slots looks for scratch whose task has gone.
func (d *diagnosis) slots(ctx context.Context, n *nomad, node string, all []found) {
	var held []found
	for _, f := range all {
		if state(f.Dataset) == "slot" {
			held = append(held, f)
		}
	}
	if len(held) == 0 {
		return
	}
	allocations, _, err := n.Nodes().Allocations(node, read(ctx, ""))
	if err != nil {
		d.problem("the allocations of this node can't be listed: %v", err)
		return
	}
	if len(allocations) == 0 {
		d.problem("Nomad shows no allocation of this node, although slots are in use (%d): does the token have read-job in "+
			"all namespaces?", len(held))
		return
	}
	ended := map[string]bool{}
	for _, a := range allocations {
		ended[a.ID] = a.ClientTerminalStatus()
	}
	for _, f := range held {
		allocation, _, _ := strings.Cut(f.Tags[engine.Holder], "/")
		over, seen := ended[allocation]
		switch {
		case allocation == "" && d.now.Sub(f.Created) > late:
			d.problem("slot %s is reserved since %s, and it is not known by whom", f.id(), when(f.Created))
		case allocation != "" && !seen:
			if _, _, err := n.Allocations().Info(allocation, read(ctx, "")); absent(err) {
				d.problem("slot %s is held by allocation %s, which Nomad does not have any more%s", f.id(), allocation,
					d.still(ctx, f))
			}
		case over && d.now.Sub(f.Created) > late:
			d.problem("slot %s is held by allocation %s, which has ended%s", f.id(), allocation, d.still(ctx, f))
		}
	}
}

// still says who uses a slot in spite of all.
func (d *diagnosis) still(ctx context.Context, f found) string {
	users, err := f.engine.Users(ctx, f.Name)
	if err != nil || len(users) == 0 {
		return ": it is given back soon, or when it is reserved again" + errorText(err)
	}
	return ": still used by " + several(users)
}

func errorText(err error) string {
	if err == nil || errors.Is(err, context.Canceled) {
		return ""
	}
	return " (" + err.Error() + ")"
}
