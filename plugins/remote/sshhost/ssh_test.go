// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/endpointtest"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/simulate/simulatetest"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
	"github.com/outrider-dev/outrider/plugins/remote/upload"
)

// The same by an SSH server, as one that is not root. The shim is copied there first.
func TestHost_KeepsTheContractOverSSH(t *testing.T) { endpointtest.Run(t, overSSH(t)) }

func TestTake_HasOneWinnerFiftyTimesOverSSH(t *testing.T) {
	endpointtest.TakeRaces(t, overSSH(t), 3, 50)
}

func overSSH(t *testing.T) endpointtest.Column {
	host := simulatetest.New(t, simulate.Options{})
	client, err := ssh.New(ssh.Config{
		Host: host.Address, Port: host.Port, User: simulate.User, KeyFile: host.KeyFile, HostKeys: []string{host.HostKey},
	})
	must.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	shims := upload.New(client, "")
	var mu sync.Mutex
	conns := map[endpoint.Endpoint]net.Conn{}
	missing := shell("")
	missing.Process.Command = "no-such-program"
	return endpointtest.Column{
		Connect: func(testing.TB) endpoint.Endpoint {
			var h *sshhost.Host
			h = sshhost.New(sshhost.Config{Lease: testLease, Dial: func(ctx context.Context) (net.Conn, error) {
				conn, err := shims.Dial(ctx)
				mu.Lock()
				defer mu.Unlock()
				conns[h] = conn
				return conn, err
			}})
			return h
		},
		Cut: func(t testing.TB, e endpoint.Endpoint) {
			mu.Lock()
			defer mu.Unlock()
			must.NoError(t, conns[e].Close())
		},
		Lease: testLease, Shell: shell, Missing: missing, Gaps: 64 << 10,
	}
}
