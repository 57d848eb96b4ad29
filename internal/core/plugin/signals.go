// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"os"
	"os/signal"
	"syscall"
)

// holdSignals keeps the process alive when its process group or service gets a signal:
// the agent, which is in the same ones, ends the plugin itself when it does not need it
// any more, or ends with it.
//
//   - SIGPIPE comes when a line is logged after the agent was killed.
//   - SIGHUP comes when the terminal of a development agent closes.
//   - SIGINT, a Ctrl-C in that terminal, is held by go-plugin's Serve.
//   - SIGTERM comes when systemd stops the service with KillMode=control-group,
//     while the agent still drains its tasks through this plugin.
//
// They are caught and not ignored, since children inherit what is ignored
// (execve(2)) and what is caught is theirs by default.
func holdSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGTERM)
}
