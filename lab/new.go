// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"

	"github.com/outrider-dev/outrider/lab/newplugin"
)

// NewPlugin makes a new plugin of a kind, and prints what to do next with it.
func NewPlugin(ctx context.Context, kind newplugin.Kind, name string) error {
	l, err := New("")
	if err != nil {
		return err
	}
	return l.Command(ctx, func(ctx context.Context) error {
		end := l.step(ctx, "Making plugins/%s, and compiling it for the first time", name)
		files, err := newplugin.Create(ctx, l.root, kind, name)
		end(err, "")
		if err != nil {
			return err
		}
		for _, file := range files {
			l.say("%s", file)
		}
		l.say("\nA lab loads it, also one that runs, and runs its first job:\n")
		l.hint("lab:up")
		l.hint("lab:run plugins/%s/example/hello.nomad.hcl", name)
		return nil
	})
}
