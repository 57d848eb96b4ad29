// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"os/exec"
)

// Logs prints the agent's log, or the output of a job's task as the nomad program does, until interrupted.
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
