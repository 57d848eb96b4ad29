// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import "context"

// Reload builds the plugins, and restarts the agents of a running lab with them. Tasks keep running.
func (l *Lab) Reload(ctx context.Context) error {
	_, err := l.open(ctx)
	if err != nil {
		return err
	}
	_, err = l.start(ctx, With{})
	return err
}
