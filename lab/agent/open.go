// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Open returns the agent that Run started in dir, in this process or another one,
// whether it still runs or not. It returns ErrNone if there is none.
func Open(ctx context.Context, dir string) (Agent, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if dir, err = resolve(dir); err != nil {
		return nil, err
	}
	info, err := readInfo(dir)
	if err != nil {
		return nil, err
	}
	if info.Runtime == Container {
		return openContainer(ctx, info)
	}
	a := &hostAgent{record: &record{info: info}}
	return a, a.connect()
}

// Remove removes what is left of an agent of dir, even if its state file is lost or
// cannot be read. It returns ErrNone if there was nothing.
func Remove(ctx context.Context, dir string) error {
	a, err := Open(ctx, dir)
	if err == nil {
		return a.Close(ctx)
	}
	abs, aerr := filepath.Abs(dir)
	if aerr != nil {
		return aerr
	}
	if abs, aerr = resolve(abs); aerr != nil {
		return aerr
	}
	ps, perr := processes(abs)
	if perr != nil {
		return perr
	}
	if _, serr := os.Stat(abs); serr != nil && len(ps) == 0 && errors.Is(err, ErrNone) {
		return ErrNone
	}
	if !errors.Is(err, ErrNone) {
		fmt.Fprintf(os.Stderr, "warning: %v; removing what can be found\n", err)
	}
	h := &hostAgent{record: &record{info: Info{Dir: abs}}}
	return clean(ctx, h.info, h.allocs())
}
