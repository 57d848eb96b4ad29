// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/simulate/simulatetest"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
	"github.com/outrider-dev/outrider/plugins/remote/upload"
)

// The home of two hosts is on NFS. Each would take the other's tasks for lost by a reboot, and run them a second time.
func TestHost_LeavesADirectoryToTheHostThatHasIt(t *testing.T) {
	testsupport.NeedRoot(t)
	top, err := os.MkdirTemp("", "ors")
	must.NoError(t, err)
	defer os.RemoveAll(top)
	must.NoError(t, os.Chmod(top, 0o755))
	shared := filepath.Join(top, "state")
	must.NoError(t, os.Mkdir(shared, 0o711))
	connect := func(name string) *sshhost.Host {
		h := simulatetest.New(t, simulate.Options{})
		client := func(user string) *ssh.Client {
			c, err := ssh.New(ssh.Config{
				Host: h.Address, Port: h.Port, User: user, KeyFile: h.KeyFile, HostKeys: []string{h.HostKey},
			})
			must.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		_, err := client(simulate.Root).Run(t.Context(), nil, `hostname "$1"; chown remote: "$2"`, name, shared)
		must.NoError(t, err)
		e := sshhost.New(sshhost.Config{Lease: testLease, Dial: upload.New(client(simulate.User), shared).Dial})
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	one, other := connect("gpu1"), connect("gpu2")
	k := endpoint.Key{Job: t.Name(), Task: "web"}
	ref := endpoint.Ref{Name: k.Name("0123456789ab"), Epoch: 1}
	must.NoError(t, one.Create(t.Context(), &endpoint.Record{Name: ref.Name, Key: k}))
	must.NoError(t, one.Prepare(t.Context(), ref, shell("exec sleep 1000"), nil))
	r, err := one.Start(t.Context(), ref, shell("exec sleep 1000"))
	must.NoError(t, err)

	for name, call := range map[string]func() error{
		"probe": func() error { _, err := other.Probe(t.Context()); return err },
		"list":  func() error { _, err := other.List(t.Context()); return err },
		"get":   func() error { _, err := other.Get(t.Context(), ref.Name); return err },
		"take":  func() error { _, err := other.Take(t.Context(), ref, endpoint.Owner{TaskID: "b"}); return err },
		"logs": func() error {
			_, err := other.Logs(t.Context(), ref.Name, "stdout", endpoint.Place{}, 0)
			return err
		},
		"exec": func() error {
			_, err := other.Exec(t.Context(), ref, &endpoint.ExecOptions{Command: []string{"/bin/true"}})
			return err
		},
	} {
		err := call()
		test.ErrorContains(t, err, "the directory "+shared+" on the host is that of another machine, ", test.Sprint(name))
		test.ErrorContains(t, err, "gpu2", test.Sprint(name))
	}
	now, err := one.Get(t.Context(), ref.Name)
	must.NoError(t, err)
	must.Eq(t, endpoint.Running, now.State)
	must.Eq(t, r.PID, now.PID)
	r, err = one.Stop(t.Context(), now.Ref(), "SIGKILL", 0, "end of the test")
	must.NoError(t, err)
	must.NoError(t, one.Remove(t.Context(), r.Ref()))
}
