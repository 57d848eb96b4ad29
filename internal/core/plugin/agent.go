// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// endWithAgent calls stop when the agent that started this process is gone, however it ended. Its tasks go on. A later
// agent would re-attach to this process (Nomad's drivermanager/instance.go), which has the mount namespace, the limits
// and the configuration of the one before: it is to start another.
//
// The agent reads this process's standard error for as long as it lives (go-plugin's client.go), so the pipe has no
// reader any more when it does not.
func endWithAgent(logger hclog.Logger, stop func()) {
	const stderr = 2
	pipe := []unix.PollFd{{Fd: stderr}} // of no event: POLLERR comes unasked, poll(2)
	for pipe[0].Revents == 0 {
		if _, err := unix.Poll(pipe, -1); err != nil && err != unix.EINTR {
			logger.Error("failed to watch the agent", "error", err)
			return
		}
	}
	stop()
}
