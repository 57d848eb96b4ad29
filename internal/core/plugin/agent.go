// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// endWithAgent waits until the agent that started this process has ended, for whatever reason, and then calls stop.
// Tasks keep running. If this process stayed too, the next agent would re-attach to it (Nomad's
// drivermanager/instance.go), although it has the mount namespace, limits and configuration of the previous agent.
//
// The pipe on standard error shows the agent's end: the agent reads it until then (go-plugin's client.go), and
// afterwards the pipe has no reader.
func endWithAgent(logger hclog.Logger, stop func()) {
	const stderr = 2
	pipe := []unix.PollFd{{Fd: stderr}} // no events requested: poll(2) always reports POLLERR, that is, no reader
	for pipe[0].Revents == 0 {
		if _, err := unix.Poll(pipe, -1); err != nil && err != unix.EINTR {
			logger.Error("failed to watch the agent", "error", err)
			return
		}
	}
	stop()
}
