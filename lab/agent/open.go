// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"os"
)

// Open returns the agent that Run started in dir, in this process or another one. The agent may have ended. Open
// returns ErrNone if there is none.
func Open(ctx context.Context, dir string) (Agent, error) {
	dir, err := resolve(dir)
	if err != nil {
		return nil, err
	}
	info, err := readInfo(dir)
	if err != nil {
		return nil, err
	}
	if info.Runtime == Container {
		return openContainer(ctx, info)
	}
	a := newHost(&record{info: info})
	return a, a.connect()
}

// Remove removes everything of an agent in dir, even if its state file is lost or cannot be read. It returns ErrNone
// if there was nothing.
func Remove(ctx context.Context, dir string) error {
	dir, err := resolve(dir)
	if err != nil {
		return err
	}
	a, lost := Open(ctx, dir)
	if _, err := os.Stat(dir); err != nil {
		return ErrNone
	}
	if lost != nil {
		a = newHost(&record{info: Info{Dir: dir}})
	}
	return a.Close(ctx)
}
