// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/stream"
)

var sendCommand = command{
	name: "send", help: "write a snapshot of a volume to standard output",
	usage: "VOLUME[@SNAPSHOT] [-since SNAPSHOT]", least: 1, most: 1,
	about: `Writes a snapshot for "receive", on this node or another:

    nomad-device-dataset send data@monday | ssh other nomad-device-dataset receive fast
    nomad-device-dataset send data@tuesday -since monday | ssh other nomad-device-dataset receive fast

Without a snapshot, one is made, whose name is printed to standard error; it stays, since
the next stream can begin with it.`,
	options: func(f *flag.FlagSet) func(context.Context, *session, []string) error {
		since := f.String("since", "", "only the changes since this snapshot, which the receiver must have")
		return func(ctx context.Context, s *session, args []string) error {
			if out, ok := s.out.(*os.File); ok && terminal(out) {
				return errors.New("a stream is not for a terminal: write it to a file, or to \"nomad-device-dataset receive\"")
			}
			name, snapshot := splitAt(args[0])
			v, err := s.volume(ctx, name)
			if err != nil {
				return err
			}
			if snapshot == "" {
				snapshot = stamped("send-")
				locked, unlock, err := v.locked(ctx)
				if err != nil {
					return err
				}
				err = locked.snapshot(ctx, snapshot)
				unlock()
				if err != nil {
					return err
				}
				s.say("Snapshot %s of volume %s is made and sent.", snapshot, v)
			}
			for _, name := range []string{snapshot, *since} {
				if name == "" {
					continue
				}
				if _, _, err := v.snapshotOf(ctx, name); err != nil { // before anything is written
					return err
				}
			}
			return v.send(ctx, snapshot, *since, s.out)
		}
	},
}

// send writes a stream. Snapshots do not change, so no lock is held while it goes on.
func (f found) send(ctx context.Context, snapshot, since string, w io.Writer) error {
	h := stream.Header{
		Backend: f.Backend, ID: f.id(), Name: f.Tags[engine.Volume], Namespace: f.Tags[engine.Namespace], Class: f.label,
		Snapshot: snapshot, Since: since, Capacity: f.Limits.Data, Snapshots: f.Limits.Snapshots,
		Schedule: f.Tags[engine.Schedule],
	}
	err := stream.Write(w, h, func(w io.Writer) error { return f.engine.Send(ctx, f.Name, snapshot, since, w) })
	if err != nil {
		return fmt.Errorf("snapshot %q of volume %s was not sent: %w", snapshot, f, err)
	}
	return nil
}

func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
