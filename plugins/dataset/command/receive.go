// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
	"github.com/outrider-dev/outrider/plugins/dataset/stream"
)

var receiveCommand = command{
	name: "receive", help: "read a stream of \"send\" from standard input",
	usage: "CLASS [-json] | CLASS -state ID | CLASS -forget ID", least: 1, most: 1,
	about: `Reads a stream and keeps what it has, apart from all volumes, until it becomes one: the
specification for that is printed.

    nomad-device-dataset receive fast < stream | nomad volume create -

Until then it can be continued with streams of changes ("send -since"). Nothing is there
before it is complete; a stream that was cut is sent again. No volume is ever changed.`,
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		asJSON := f.Bool("json", false, "print JSON instead: which snapshots are here, and the key")
		id := f.String("state", "", "only print this, of what was received of the volume with this id")
		volume := f.String("volume", "", "with -state: also whether this volume (JSON) would be accepted, as move asks")
		forget := f.String("forget", "", "put what was received of the volume with this id into the trash")
		return func(ctx context.Context, s *session, args []string) error {
			c, err := s.class(args[0])
			switch {
			case err != nil:
				return err
			case *id != "" && !policy.IsID(*id), *forget != "" && !policy.IsID(*forget):
				return fmt.Errorf("%q is not the id of a volume", cmp.Or(*id, *forget))
			case *id != "":
				if err := s.accepts(*volume); err != nil {
					return err
				}
				return s.printState(ctx, c, *id)
			case *forget != "":
				return c.forget(ctx, *forget)
			}
			if in, ok := s.in.(*os.File); ok && terminal(in) {
				return errors.New("there is no stream on standard input: usage: nomad-device-dataset send … | " +
					"nomad-device-dataset receive " + c.label)
			}
			header, body, err := stream.Read(s.in)
			if err != nil {
				return err
			}
			d, snapshots, err := c.receive(ctx, header, body)
			if err != nil {
				return err
			}
			if *asJSON {
				return json.NewEncoder(s.out).Encode(received{header.ID, snapshots, d.Tags[engine.Adopt]})
			}
			s.say("Volume %s is here as of its snapshot %s. The specification is for \"nomad volume create -\".", d,
				header.Snapshot)
			return s.specify(ctx, d, map[string]string{engine.Adopt: d.Tags[engine.Adopt]})
		}
	},
}

// received is the state of what was received, as JSON.
type received struct {
	ID        string   `json:"id"`
	Snapshots []string `json:"snapshots"` // oldest first; empty if nothing is here
	Key       string   `json:"key"`       // the parameter "adopt" with which a volume becomes this
}

// accepts returns why the operator's file would refuse a volume.
func (s *session) accepts(volume string) error {
	if volume == "" {
		return nil
	}
	var r policy.Request
	if err := json.Unmarshal([]byte(volume), &r); err != nil {
		return fmt.Errorf("-volume is not that of this program's move: %w", err)
	}
	file, err := policy.Load(s.file)
	if err != nil {
		return err
	}
	_, err = file.Volume(r)
	return err
}

// forget puts what was received into the trash.
func (c class) forget(ctx context.Context, id string) error {
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.engine.Discard(ctx, engine.ReceivedName(id), c.TrashTTL.Duration()); err != nil {
		return fmt.Errorf("what was received of volume %s: %w", id, err)
	}
	return nil
}

func (s *session) printState(ctx context.Context, c class, id string) error {
	d, have, err := c.have(ctx, id)
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	return json.NewEncoder(s.out).Encode(received{id, have, d.Tags[engine.Adopt]})
}

// have is what was received of a volume, with its snapshots.
func (c class) have(ctx context.Context, id string) (d engine.Dataset, names []string, err error) {
	names = []string{}
	if d, err = c.engine.Get(ctx, engine.ReceivedName(id)); err != nil {
		return d, names, err
	}
	all, err := c.engine.Snapshots(ctx, d.Name)
	for _, s := range all {
		names = append(names, s.Name)
	}
	return d, names, err
}

// receive makes or continues what is received of a volume, and returns the snapshots that it has
// then.
func (c class) receive(ctx context.Context, h stream.Header, body *stream.Body) (found, []string, error) {
	if err := c.accept(h); err != nil {
		return found{}, nil, err
	}
	unlock, err := c.lock(ctx, h.ID)
	if err != nil {
		return found{}, nil, err
	}
	defer unlock()
	d, have, err := c.have(ctx, h.ID)
	exists := err == nil
	switch {
	case err != nil && !errors.Is(err, engine.ErrNotFound):
		return found{}, nil, err
	case slices.Contains(have, h.Snapshot):
		return found{}, nil, fmt.Errorf("snapshot %q of volume %s was received already", h.Snapshot, h.ID)
	case h.Since == "" && exists:
		return found{}, nil, fmt.Errorf("volume %s was received already, with the snapshots %s: send the changes with "+
			"-since, or begin again after \"receive %s -forget %s\"", h.ID, strings.Join(have, ", "), c.label, h.ID)
	case h.Since != "" && !slices.Contains(have, h.Since):
		return found{}, nil, fmt.Errorf("the stream has changes since snapshot %q, which is not here: %s", h.Since,
			c.instead(ctx, h, have))
	case exists:
		err = c.take(ctx, h, body, d.Name)
		at("received")
	default:
		d, err = c.begin(ctx, h, body)
	}
	return found{c, d}, append(have, h.Snapshot), err
}

// begin makes what is received, which is nowhere to be seen before it is whole.
func (c class) begin(ctx context.Context, h stream.Header, body *stream.Body) (d engine.Dataset, err error) {
	work, name := engine.NewName(h.ID), engine.ReceivedName(h.ID)
	if err := c.engine.Destroy(ctx, work); err != nil { // of one that was killed
		return d, err
	}
	if err := c.take(ctx, h, body, work); err != nil {
		return d, errors.Join(err, c.engine.Destroy(context.WithoutCancel(ctx), work))
	}
	at("received")
	tags := engine.Tags{
		engine.Kind: "volume", engine.ID: h.ID, engine.Volume: h.Name, engine.Namespace: h.Namespace, engine.Class: c.label,
		engine.Schedule: h.Schedule, engine.Adopt: rand.Text(),
	}
	if err := c.engine.Tag(ctx, work, tags); err != nil {
		return d, err
	}
	at("tagged")
	if err := c.engine.Resize(ctx, work, engine.Limits{Data: h.Capacity, Snapshots: h.Snapshots}); err != nil {
		return d, err
	}
	at("resized")
	if err := c.engine.Rename(ctx, work, name); err != nil {
		return d, err
	}
	at("renamed")
	return c.engine.Get(ctx, name)
}

// take reads the stream.
func (c class) take(ctx context.Context, h stream.Header, body *stream.Body, name string) error {
	err := c.engine.Receive(ctx, name, body)
	if err == nil && !body.Complete() {
		err = errors.New("the file system has not read all of it")
	}
	if body.Err() != nil { // the reason, of which the file system's own error comes
		err = body.Err()
	}
	if err != nil {
		return fmt.Errorf("volume %s was not received: %w", h.ID, err)
	}
	return nil
}

// accept returns why a stream is not for this class, before anything of it is read.
func (c class) accept(h stream.Header) error {
	if h.Backend != c.Backend {
		return fmt.Errorf("the stream is of %s, and class %q is on %s: receive it into a class on %s", h.Backend, c.label,
			c.Backend, h.Backend)
	}
	_, scheduleErr := policy.ParseSchedule(h.Schedule)
	if !policy.IsID(h.ID) || !policy.IsNamespace(h.Namespace) || scheduleErr != nil || h.Capacity < 0 ||
		h.Snapshots < 0 || h.Name == "" || len(h.Name) > 128 || strings.ContainsFunc(h.Name, unicode.IsControl) {
		return errors.New("the stream names no volume")
	}
	for _, name := range []string{h.Snapshot, h.Since} {
		if name == "" && h.Snapshot != "" {
			continue
		}
		if err := policy.CheckSnapshot(name); err != nil {
			return err
		}
	}
	if h.Capacity > c.MaxCapacity.Bytes() {
		return fmt.Errorf("the volume has a capacity of %s, and class %q allows %s: raise max_capacity, or receive it into "+
			"another class", size(h.Capacity), c.label, c.MaxCapacity)
	}
	return nil
}

// instead says what to do where the base of a stream is missing.
func (c class) instead(ctx context.Context, h stream.Header, have []string) string {
	if len(have) > 0 {
		return "here are " + strings.Join(have, ", ")
	}
	if d, err := c.engine.Get(ctx, engine.VolumeName(h.Namespace, h.ID)); err == nil {
		return fmt.Sprintf("volume %s is in use on this node, and no stream changes it", found{c, d})
	}
	return "send the whole volume first, without -since"
}
