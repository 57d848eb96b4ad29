// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/cache"
)

// Down stops the jobs and the agent, and removes everything of the lab but what the next lab can use again. It lists
// that. If there is no lab, it reports that and succeeds.
func (l *Lab) Down(ctx context.Context) error {
	if err := l.remove(ctx); err != nil {
		return err
	}
	left := l.kept(ctx)
	if len(left) == 0 {
		return nil
	}
	var names []string
	for _, k := range left {
		names = append(names, k.name)
	}
	l.say("\nFor the next lab there still is %s. Remove that, too, with:\n", joined(names))
	l.hint("lab:purge")
	return nil
}

// Purge is Down, and also removes what is kept for the next lab. The results of builds stay in bin/ and in Go's cache.
func (l *Lab) Purge(ctx context.Context) error {
	if err := l.remove(ctx); err != nil {
		return err
	}
	for _, k := range l.kept(ctx) {
		end := l.step(ctx, "Removing %s", k.name)
		err := k.remove(ctx)
		end(err, "")
		if err != nil {
			return err
		}
	}
	return nil
}

// remove ends the lab.
func (l *Lab) remove(ctx context.Context) error {
	if _, err := agent.Open(ctx, l.dir); errors.Is(err, agent.ErrNone) {
		err := errors.Join(l.removeNodes(ctx), agent.Remove(ctx, l.dir))
		if errors.Is(err, agent.ErrNone) {
			l.say("The lab is not up: nothing to do.")
			return nil
		}
		return err
	}
	end := l.step(ctx, "Stopping the jobs and the agent")
	err := errors.Join(l.stopOnNodes(ctx), l.removeNodes(ctx), agent.Remove(ctx, l.dir))
	end(err, "they are gone, with their files")
	if err != nil && cancelled(ctx) {
		return Interrupted("the lab is not all gone. Go on with: " + mage + " lab:down")
	}
	return err
}

// kept is something that stays after a lab, for the next one.
type kept struct {
	name   string
	remove func(context.Context) error
}

func (l *Lab) kept(ctx context.Context) (found []kept) {
	if l.docker.answers(ctx) == nil && l.docker.hasImage(ctx) {
		found = append(found, kept{"Docker's image " + agent.Image, l.docker.removeImage})
	}
	dir, err := cache.Dir()
	if err != nil {
		return found
	}
	if _, err := os.Stat(dir); err == nil {
		remove := func(context.Context) error { return removeCache(dir) }
		name := "the cache " + dir + " (Nomad, the VM's kernel), which all labs of this user share"
		found = append(found, kept{name, remove})
	}
	return found
}

// removeCache removes the cache, unless a process runs a program in it.
func removeCache(dir string) error {
	users, err := agent.RunBelow(dir)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%s is in use: process %s", dir, joined(users))
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("failed to remove the cache: %w", err)
	}
	return nil
}
