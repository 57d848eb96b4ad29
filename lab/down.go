package lab

import (
	"context"
	"errors"

	"github.com/outrider-dev/outrider/lab/agent"
)

// Down stops the jobs and the agent and removes everything of the lab. Where
// there is nothing it says so and succeeds.
func (l *Lab) Down(ctx context.Context) error {
	if _, err := agent.Open(ctx, l.dir); errors.Is(err, agent.ErrNone) {
		err := agent.Remove(ctx, l.dir)
		if errors.Is(err, agent.ErrNone) {
			l.say("The lab is not up: nothing to do.")
			return nil
		}
		return err
	}
	end := l.steps.Step("Stopping the jobs and the agent")
	err := agent.Remove(ctx, l.dir)
	end(err, "nothing is left")
	return err
}
