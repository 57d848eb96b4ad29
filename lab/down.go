// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"

	"github.com/outrider-dev/outrider/lab/agent"
)

// Down stops the jobs and the agent, and removes everything of the lab but Docker's image and the cache, which the next
// lab can use again. If there is no lab, it reports that and succeeds.
func (l *Lab) Down(ctx context.Context) error {
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
