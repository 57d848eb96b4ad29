// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"context"
	"strings"

	"github.com/outrider-dev/outrider/lab/nomad"
)

// logTail returns the last interesting lines of an agent's log.
func logTail(ctx context.Context, a Agent) string {
	var log strings.Builder
	if err := a.Logs(ctx, &log, false); err != nil {
		return err.Error()
	}
	return interesting(log.String(), 12)
}

// interesting returns the last n lines of an agent's log that explain why it did not come up: errors, warnings, and
// lines that are not in log format (a usage message, a panic). If there are none, it returns the last lines.
func interesting(log string, n int) string {
	var all, bad []string
	for line := range strings.Lines(log) {
		line = strings.TrimRight(line, "\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		all = append(all, line)
		if !strings.Contains(line, "[INFO]") && !strings.Contains(line, "[DEBUG]") && !strings.Contains(line, "[TRACE]") {
			bad = append(bad, line)
		}
	}
	lines := all
	if len(bad) > 0 {
		lines = bad
	}
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return nomad.Plain(strings.Join(lines, "\n"))
}
