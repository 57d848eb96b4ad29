// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
	"github.com/outrider-dev/outrider/plugins/dataset/volume"
)

var listCommand = command{
	name: "list", help: "show volumes, slots and the trash, by class",
	usage: "[-file FILE]",
	about: "Shows every class of the operator's file with its datasets.",
	run: func(ctx context.Context, s *session, _ []string) error {
		return s.list(ctx, func(engine.Dataset) bool { return true })
	},
}

var checkCommand = command{
	name: "check", help: "check the operator's file, and whether each class can be used",
	usage: "[FILE]", most: 1,
	about: `Checks the operator's file and each class's pool, and notes datasets that need attention.
Nothing is changed.`,
	run: func(ctx context.Context, s *session, args []string) error {
		if len(args) == 1 {
			s.file = args[0]
		}
		return s.check(ctx)
	},
}

// listed is a class with its datasets, as list and check print it.
type listed struct {
	Class   string `json:"class"`
	Root    string `json:"root"`
	Problem string `json:"problem,omitempty"` // why the class can't be used now
	Size    int64  `json:"size"`              // size of the class's file system in bytes
	Free    int64  `json:"free"`
	Slots   int    `json:"slots,omitempty"` // number of slots, in use or free

	Notes    []string        `json:"notes,omitempty"` // problems that need the operator's attention; list omits them
	Datasets []listedDataset `json:"datasets,omitempty"`
}

type listedDataset struct {
	State     string `json:"state"` // volume, slot, trash or waiting
	ID        string `json:"id"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Holder    string `json:"holder,omitempty"` // allocation/task that has the slot; if unknown, the lease
	Dataset   string `json:"dataset"`          // name below the root
	Path      string `json:"path,omitempty"`

	Created       time.Time `json:"created"`
	Left          string    `json:"left,omitempty"` // time until it is destroyed, such as "71h0m0s"; empty: never
	Capacity      int64     `json:"capacity"`
	Used          int64     `json:"used"`
	SnapshotsUsed int64     `json:"snapshots_used"`
}

// list prints every class with those of its datasets for which accept returns true.
func (s *session) list(ctx context.Context, accept func(engine.Dataset) bool) error {
	classes, err := s.look(ctx)
	if err != nil {
		return err
	}
	all := []listed{}
	for _, c := range classes {
		l := c.listed(cmp.Or(c.failed, c.look.Problem))
		if c.Slots != nil {
			l.Slots = c.Slots.Count
		}
		for _, d := range c.look.Datasets {
			if accept(d) {
				l.Datasets = append(l.Datasets, listedOf(d))
			}
		}
		all = append(all, l)
	}
	return s.answer(all, func(w io.Writer) {
		for _, l := range all {
			l.write(w)
		}
	})
}

// check prints the classes and their problems. It returns an error if the file is invalid or a class can't be used.
func (s *session) check(ctx context.Context) error {
	classes, err := s.look(ctx)
	if err != nil {
		return err
	}
	all, bad := []listed{}, 0
	for _, c := range classes {
		problem := cmp.Or(c.failed, c.engine.Check(ctx))
		l := c.listed(problem)
		if problem == nil {
			l.Notes = c.notes()
		} else {
			bad++
		}
		all = append(all, l)
	}
	err = s.answer(all, func(w io.Writer) {
		fmt.Fprintf(w, "%s is valid.\n", s.file)
		for _, l := range all {
			l.write(w)
		}
	})
	if bad > 0 {
		return fmt.Errorf("%d of %d classes can't be used", bad, len(all))
	}
	return err
}

// listed returns the class in its printed form, without datasets. If problem is not nil, the class can't be used.
func (c class) listed(problem error) listed {
	l := listed{Class: c.label, Root: c.Root, Size: c.look.Space.Size, Free: c.look.Space.Free}
	if problem != nil {
		l.Problem = problem.Error()
	}
	return l
}

func listedOf(d engine.Dataset) listedDataset {
	l := listedDataset{
		State: d.Tags[engine.Kind], ID: d.Tags[engine.ID], Name: d.Tags[engine.Volume],
		Namespace: d.Tags[engine.Namespace], Dataset: d.Name, Path: d.Path, Created: d.Created,
		Capacity: d.Limits.Data, Used: d.Usage.Data, SnapshotsUsed: d.Usage.Snapshots,
	}
	switch {
	case d.Waits():
		l.State = "waiting"
	case engine.InTrash(d.Name):
		l.State = "trash"
		left, _, ends, err := d.Left()
		switch {
		case err != nil:
			l.Left = err.Error()
		case ends:
			l.Left = left.String()
		}
	case l.State == "slot":
		l.Holder = cmp.Or(d.Tags[engine.Holder], "lease "+d.Tags[engine.Lease])
	}
	return l
}

// notes describes problems that need the operator's attention.
func (c class) notes() (notes []string) {
	const least, most = 5, 95 // in percent: the minimum of free space, and the maximum use of the snapshot reserve
	note := func(format string, args ...any) { notes = append(notes, plain.Line(fmt.Sprintf(format, args...), 0)) }
	if c.look.Space.Free < c.look.Space.Size/100*least {
		note("the file system is nearly full: empty the trash, remove snapshots, or add a disk")
	}
	for _, d := range c.look.Datasets {
		f := found{c, d}
		if d.IsVolume() && !volume.Recorded(d.Place) {
			note("volume %s has no record on this node, and no job can use it: run \"nomad-device-dataset adopt %s/%s\"", f,
				c.Root, d.Name)
		}
		if d.IsVolume() && d.Limits.Snapshots > 0 && d.Usage.Snapshots > d.Limits.Snapshots/100*most {
			note("snapshots of volume %s use %s of their %s: remove some before all writes to the volume fail",
				f, policy.Size(d.Usage.Snapshots), policy.Size(d.Limits.Snapshots))
		}
	}
	return notes
}

// write prints the class as a table.
func (l listed) write(w io.Writer) {
	fmt.Fprintf(w, "class %s (%s): ", l.Class, l.Root)
	if l.Problem != "" {
		fmt.Fprintf(w, "can't be used: %s\n", plain.Line(l.Problem, 0))
		return
	}
	fmt.Fprintf(w, "can be used, %s of %s free\n", policy.Size(l.Free), policy.Size(l.Size))
	for _, note := range l.Notes {
		fmt.Fprintf(w, "  note: %s\n", note)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(l.Datasets) > 0 {
		fmt.Fprintln(t, "  STATE\tNAME\tID\tUSED\tSIZE\tSNAPSHOTS\tMESSAGE")
	}
	slots := 0
	for _, d := range l.Datasets {
		name, id, remark := d.Namespace+"/"+d.Name, d.ID, ""
		if d.Name == "" {
			name = d.ID
		}
		switch d.State {
		case "slot":
			remark = "held by " + d.Holder
			slots++
		case "trash":
			remark = "until it is emptied"
			if d.Left != "" {
				remark = "for another " + d.Left
			}
			id = path.Base(d.Dataset)
		case "waiting":
			remark = "waits to become a volume"
			id = path.Base(d.Dataset)
		}
		cells := []string{d.State, name, id, policy.Size(d.Used), policy.Size(d.Capacity), policy.Size(d.SnapshotsUsed),
			remark}
		for i, c := range cells {
			cells[i] = cmp.Or(plain.Line(c, 0), "-")
		}
		fmt.Fprintln(t, "  "+strings.Join(cells, "\t"))
	}
	_ = t.Flush() // the reader may have closed the pipe
	if l.Slots > 0 {
		fmt.Fprintf(w, "  slots in use: %d of %d\n", slots, l.Slots)
	}
}
