// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

var listCommand = command{
	name: "list", help: "show volumes, slots and what the trash has, by class",
	usage: "[-file FILE]",
	about: "Shows every class of the operator's file with its datasets.",
	options: func(*flag.FlagSet) func(context.Context, *session, []string) error {
		return func(ctx context.Context, s *session, _ []string) error {
			classes, err := s.classes()
			if err != nil {
				return err
			}
			all := []listed{}
			for _, c := range classes {
				all = append(all, c.list(ctx))
			}
			return s.answer(all, func(w io.Writer) {
				for i, l := range all {
					if i > 0 {
						fmt.Fprintln(w)
					}
					l.write(w)
				}
			})
		}
	},
}

// listed is a class as JSON.
type listed struct {
	Class   string `json:"class"`
	Root    string `json:"root"`
	Problem string `json:"problem,omitempty"` // why the class can't be used now
	Size    int64  `json:"size"`              // of the file system
	Free    int64  `json:"free"`
	Slots   int    `json:"slots"` // how many the class has, in use or not

	Datasets []listedDataset `json:"datasets"`
}

type listedDataset struct {
	State     string `json:"state"` // volume, slot, trash or waiting
	ID        string `json:"id"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Holder    string `json:"holder,omitempty"` // of a slot: allocation/task, or its lease
	Dataset   string `json:"dataset"`          // below the root
	Path      string `json:"path,omitempty"`

	Created       time.Time `json:"created"`
	Left          string    `json:"left,omitempty"` // of its time in the trash, as "71h0m0s"; none: until it is emptied
	Capacity      int64     `json:"capacity"`
	Used          int64     `json:"used"`
	SnapshotsUsed int64     `json:"snapshots_used"`

	Snapshots []listedSnapshot `json:"snapshots"`
}

type listedSnapshot struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	Used    int64     `json:"used"`
}

func (c class) list(ctx context.Context) listed {
	l := listed{Class: c.label, Root: c.Root, Datasets: []listedDataset{}}
	if c.Slots != nil {
		l.Slots = c.Slots.Count
	}
	if err := c.fill(ctx, &l); err != nil {
		l.Problem = err.Error()
	}
	return l
}

func (c class) fill(ctx context.Context, l *listed) error {
	look, err := c.engine.Look(ctx)
	if err = cmp.Or(err, look.Problem); err != nil {
		return err
	}
	l.Size, l.Free = look.Space.Size, look.Space.Free
	for _, d := range look.Datasets {
		item := listedDataset{
			State: state(d), ID: d.Tags[engine.ID], Name: d.Tags[engine.Volume], Namespace: d.Tags[engine.Namespace],
			Dataset: d.Name,
			Path:    d.Path, Created: d.Created, Left: left(d), Capacity: d.Limits.Data, Used: d.Usage.Data,
			SnapshotsUsed: d.Usage.Snapshots, Snapshots: []listedSnapshot{},
		}
		if d.Tags[engine.Kind] == "slot" {
			item.Holder = cmp.Or(d.Tags[engine.Holder], "lease "+d.Tags[engine.Lease])
		} else {
			snapshots, err := c.engine.Snapshots(ctx, d.Name)
			if errors.Is(err, engine.ErrNotFound) {
				continue // it was destroyed meanwhile
			}
			if err != nil {
				return err
			}
			for _, s := range snapshots {
				item.Snapshots = append(item.Snapshots, listedSnapshot(s))
			}
		}
		l.Datasets = append(l.Datasets, item)
	}
	return nil
}

func state(d engine.Dataset) string {
	switch {
	case engine.InTrash(d.Name):
		return "trash"
	case d.Tags[engine.Kind] == "volume" && !d.IsVolume():
		return "waiting"
	}
	return d.Tags[engine.Kind]
}

// left is how long the trash keeps a dataset; empty is until it is emptied.
func left(d engine.Dataset) string {
	left, ends, err := d.Left()
	switch {
	case !engine.InTrash(d.Name) || err == nil && !ends:
		return ""
	case err != nil:
		return err.Error()
	}
	return left.String()
}

// lasts is left for a person.
func lasts(left string) string {
	if left == "" {
		return "until it is emptied"
	}
	return "for another " + plain.Line(left, 0)
}

// write is the class for a person.
func (l listed) write(w io.Writer) {
	fmt.Fprintf(w, "class %s: %s", l.Class, l.Root)
	if l.Problem != "" {
		fmt.Fprintf(w, "\n  can't be used: %s\n", plain.Line(l.Problem, 0))
		return
	}
	fmt.Fprintf(w, ", %s of %s free\n", size(l.Free), size(l.Size))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows, slots := 0, 0
	row := func(cells ...string) {
		for i, c := range cells {
			cells[i] = cmp.Or(printable(c), "-")
		}
		fmt.Fprintln(t, "  "+strings.Join(cells, "\t"))
	}
	for _, d := range l.Datasets {
		name := d.Namespace + "/" + d.Name
		remark := ""
		switch d.State {
		case "slot":
			name, remark = d.ID, "held by "+d.Holder
			slots++
		case "trash":
			remark = lasts(d.Left)
			if d.Name == "" {
				name = d.ID
			}
		case "waiting":
			remark = "waits to become a volume"
		}
		if rows++; rows == 1 {
			row("STATE", "NAME", "ID", "USED", "SIZE", "SNAPSHOTS", "MESSAGE")
		}
		snapshots := ""
		if len(d.Snapshots) > 0 {
			snapshots = fmt.Sprintf("%d, %s", len(d.Snapshots), size(d.SnapshotsUsed))
		}
		row(d.State, name, d.ID, size(d.Used), size(d.Capacity), snapshots, remark)
	}
	t.Flush()
	switch {
	case l.Slots > 0:
		fmt.Fprintf(w, "  slots in use: %d of %d\n", slots, l.Slots)
	case rows == 0:
		fmt.Fprintln(w, "  no datasets")
	}
}

// size is a number of bytes for a person.
func size(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.bytes)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d B", n)
}
