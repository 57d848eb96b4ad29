// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"

	"github.com/outrider-dev/outrider/lab/newplugin"
)

// NewPlugin creates a plugin of a kind, and prints the next commands for it.
func NewPlugin(ctx context.Context, kind newplugin.Kind, name string) error {
	l, err := New()
	if err != nil {
		return err
	}
	return l.Command(ctx, func(ctx context.Context) error {
		end := l.step(ctx, "Creating plugins/%s, and compiling it for the first time", name)
		files, err := newplugin.Create(ctx, l.root, kind, name)
		end(err, "")
		if err != nil {
			return err
		}
		for _, file := range files {
			l.say("%s", file)
		}
		l.say("\nTo load it into a new or a running lab, and run its first job:\n")
		l.hint("lab:up")
		l.hint("lab:run plugins/%s/example/hello.nomad.hcl", name)
		return nil
	})
}
