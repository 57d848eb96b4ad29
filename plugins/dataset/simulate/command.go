// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"
)

// Command is nomad-device-dataset simulate.
func Command() plugin.Command {
	return plugin.Command{
		Name:   "simulate",
		Help:   "make a file system in a file, to try datasets, or remove it",
		Undoes: true,
		Run:    func(ctx context.Context, args []string) error { return command(ctx, args, os.Stdout) },
	}
}

const help = `Makes a file system in a sparse file, with a root for each class, and prints the
classes for the operator's file. KIND is btrfs or zfs-fuse. All of it is in DIR,
which must not exist, until -remove.

  nomad-device-dataset simulate [-size 2GiB] KIND DIR CLASS...
  nomad-device-dataset simulate -remove DIR

`

func command(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	remove := flags.Bool("remove", false, "remove what is in DIR")
	size := flags.String("size", "2GiB", "size of the file system")
	given, err := plugin.Parse(flags, args, help, out)
	if err != nil {
		return err
	}
	switch {
	case *remove && len(given) == 1:
		dir, err := filepath.Abs(given[0])
		if err != nil {
			return err
		}
		return Remove(ctx, dir)
	case *remove || len(given) < 3:
		return errors.New("write: nomad-device-dataset simulate KIND DIR CLASS..., or simulate -remove DIR")
	}
	bytes, err := schema.ParseSize(*size)
	if err != nil {
		return fmt.Errorf("-size %w", err)
	}
	dir, err := filepath.Abs(given[1])
	if err != nil {
		return err
	}
	pool, err := Make(ctx, given[0], dir, bytes)
	if err != nil {
		return err
	}
	for _, class := range given[2:] {
		root, err := pool.Sub(ctx, class)
		if err != nil {
			return errors.Join(err, Remove(context.WithoutCancel(ctx), dir))
		}
		fmt.Fprintf(out, "class %q {\n  backend = %q\n  root    = %q\n}\n", class, pool.Backend, root)
	}
	return nil
}

// Sub makes a root in the pool, for a class of its own.
func (p Pool) Sub(ctx context.Context, name string) (root string, err error) {
	root = p.Root + "/" + name
	if p.Backend == "zfs" {
		_, err = run(ctx, p.Program, "create", "-o", "mountpoint=none", root)
	} else {
		err = os.Mkdir(root, 0o711)
	}
	if err != nil {
		return "", fmt.Errorf("failed to make a root for class %s: %w", name, err)
	}
	return root, nil
}
