// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"os"
	"time"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// Watch runs a job file now, and again whenever the file is saved, until ctx ends. A failed run does not end Watch.
func (l *Lab) Watch(ctx context.Context, path string) error {
	for {
		submitted := saved(path)
		running, stop := context.WithCancel(ctx)
		changed := make(chan error, 1)
		go func() {
			changed <- poll.Until(ctx, 200*time.Millisecond, func() (bool, error) {
				now := saved(path)
				return !now.IsZero() && now != submitted, nil // an editor may remove the file for a moment
			})
			stop()
		}()
		err := l.Run(running, path)
		switch {
		case ctx.Err() != nil:
			stop()
			return err
		case err != nil && running.Err() == nil:
			l.say("Error: %v", err)
		}
		if running.Err() == nil {
			l.say("\nWaiting until %s is saved again. Ctrl-C ends the watch; the job keeps running.", path)
		}
		err = <-changed // fails if ctx has ended
		if err != nil {
			return err
		}
		l.say("")
	}
}

// saved returns the time at which a file was last changed, or zero if the file is missing.
func saved(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
