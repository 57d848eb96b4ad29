// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"os/exec"
)

// Logs follows the agent's log or, if job is set, the output of the job's task, until ctx ends.
func (l *Lab) Logs(ctx context.Context, job string) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	if job != "" {
		return l.nomad(ctx, a, "alloc", "logs", "-f", "-namespace=*", "-job", job)
	}
	tail := exec.CommandContext(ctx, "tail", "-n", "+1", "-F", a.LogPath())
	tail.Stdout = l.out
	return tail.Run()
}
