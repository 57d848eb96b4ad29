// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"os"
	"os/signal"
	"syscall"
)

// holdSignals keeps the process alive when a signal is sent to its whole process group or service. The agent gets the
// signal too, and may still need the plugin. The plugin ends on the agent's request, or with the agent.
//
//   - SIGPIPE is sent when a line is logged after the agent was killed.
//   - SIGHUP is sent when the terminal of a development agent closes.
//   - SIGINT, a Ctrl-C in that terminal, is handled by go-plugin's Serve.
//   - SIGTERM is sent when systemd stops the service with KillMode=control-group,
//     while the agent still drains its tasks through this plugin.
//
// The signals are caught, not ignored: children inherit ignored signals, but get the default for caught ones
// (execve(2)).
func holdSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGTERM)
}
