// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/endpointtest"
)

func column(m *machine) endpointtest.Column {
	missing := shell("")
	missing.Process.Command = "no-such-program"
	return endpointtest.Column{
		Connect: m.connect, Lease: testLease, Shell: shell, Missing: missing, KillModes: m.user == 0, Gaps: 64 << 10,
		Cut: m.cut,
		Lose: func(t testing.TB, r *endpoint.Record) {
			m.killAll(t)
			kill(t, r.PID)
			gone(t, r.PID)
		},
	}
}

func TestHost_KeepsTheContractAsRoot(t *testing.T) {
	t.Parallel()
	testsupport.NeedRoot(t)
	c := column(newMachine(t, 0))
	c.User, c.Memory = strconv.Itoa(nobody), cgroup.Detect("").Mode != cgroup.None
	endpointtest.Run(t, c)
}

func TestHost_KeepsTheContractWithoutRoot(t *testing.T) {
	t.Parallel()
	user := os.Geteuid()
	if user == 0 {
		user = nobody
	}
	endpointtest.Run(t, column(newMachine(t, user)))
}
