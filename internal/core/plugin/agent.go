// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// endWithAgent calls stop when the agent that started this process has ended, for whatever reason. Tasks keep
// running. A later agent must start a new process. Otherwise that agent would re-attach to this process (Nomad's
// drivermanager/instance.go), which has the mount namespace, the limits and the configuration of the previous agent.
//
// The agent reads this process's standard error until the agent ends (go-plugin's client.go). After that, the pipe
// has no reader.
func endWithAgent(logger hclog.Logger, stop func()) {
	const stderr = 2
	pipe := []unix.PollFd{{Fd: stderr}} // no events requested: POLLERR is always reported, poll(2)
	for pipe[0].Revents == 0 {
		if _, err := unix.Poll(pipe, -1); err != nil && err != unix.EINTR {
			logger.Error("failed to watch the agent", "error", err)
			return
		}
	}
	stop()
}
