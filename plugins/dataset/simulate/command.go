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
		Help:   "make a pool in a file, to try datasets, or remove it",
		Undoes: true,
		Run:    func(ctx context.Context, args []string) error { return command(ctx, args, os.Stdout) },
	}
}

const help = `Makes a pool of zfs-fuse in a sparse file, with a root for each class, and prints
the classes for the operator's file. All of it is in DIR, which must not exist,
until -remove.

  nomad-device-dataset simulate [-size 2GiB] DIR CLASS...
  nomad-device-dataset simulate -remove DIR

`

func command(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	remove := flags.Bool("remove", false, "remove what is in DIR")
	size := flags.String("size", "2GiB", "size of the pool")
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
	case *remove || len(given) < 2:
		return errors.New("write: nomad-device-dataset simulate DIR CLASS..., or simulate -remove DIR")
	}
	bytes, err := schema.ParseSize(*size)
	if err != nil {
		return fmt.Errorf("-size %w", err)
	}
	dir, err := filepath.Abs(given[0])
	if err != nil {
		return err
	}
	pool, err := Make(ctx, dir, bytes)
	if err != nil {
		return err
	}
	for _, class := range given[1:] {
		root, err := pool.Sub(ctx, class)
		if err != nil {
			return errors.Join(err, Remove(context.WithoutCancel(ctx), dir))
		}
		fmt.Fprintf(out, "class %q {\n  root = %q\n}\n", class, root)
	}
	return nil
}

// Sub makes a root in the pool, for a class of its own.
func (p Pool) Sub(ctx context.Context, name string) (root string, err error) {
	root = p.Root + "/" + name
	if _, err = run(ctx, p.Program, "create", "-o", "mountpoint=none", root); err != nil {
		return "", fmt.Errorf("failed to make a root for class %s: %w", name, err)
	}
	return root, nil
}
