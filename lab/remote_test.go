// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

func TestRemote_IsAsAskedForOrAsBefore(t *testing.T) {
	for in, want := range map[string]remote{"": remoteAsBefore, "false": remoteNone, "true": remoteSim} {
		got, err := parseRemote(in)
		must.NoError(t, err, must.Sprint(in))
		test.Eq(t, want, got, test.Sprint(in))
	}
	_, err := parseRemote("gpu1")
	test.ErrorContains(t, err, "want true")
	r, err := remoteAsBefore.chosen(t.Context(), t.TempDir())
	test.NoError(t, err)
	test.Eq(t, remoteNone, r, test.Sprint("a new lab has"))
	up := t.TempDir()
	info := `{"runtime": "host", "dir": "` + up + `", "http_port": 1, "labels": {"remote": "true"}}`
	must.NoError(t, os.WriteFile(filepath.Join(up, "agent.json"), []byte(info), 0o600))
	r, err = remoteAsBefore.chosen(t.Context(), up)
	test.NoError(t, err)
	test.Eq(t, remoteSim, r)
	_, err = remoteNone.chosen(t.Context(), up)
	test.ErrorContains(t, err, "lab:down lab:up -remote=false", test.Sprint("its servers have their heartbeats"))
}

func TestRemoteRows_ShowOwnersAndLeases(t *testing.T) {
	const list = `[{"endpoint": "box", "tasks": [
  {"key": {"job": "web", "group": "g", "task": "t", "index": 2}, "state": "running", "epoch": 3,
   "owner": {"alloc": "0123456789", "node": "n2"}, "lease": 4000000000, "gc": false},
  {"key": {"job": "old", "group": "g", "task": "t", "index": 0}, "state": "running", "epoch": 1,
   "owner": {"alloc": "abcdefghij", "node": "n9"}, "lease": -2000000000},
  {"key": {"job": "up", "group": "g", "task": "t", "index": 0}, "state": "released", "epoch": 1,
   "owner": {"alloc": "abcdefghij", "node": "n2"}, "lease": -2000000000}]},
 {"endpoint": "engine", "problem": "it is away", "tasks": []}, {"endpoint": "empty", "tasks": []}]`
	var all []listed
	must.NoError(t, json.Unmarshal([]byte(list), &all))
	test.Eq(t, [][]string{
		{"ENDPOINT", "REMOTE TASK", "STATE", "OWNER", "EPOCH", "LEASE"},
		{"box", "web.g[2]/t", "running", "node2, allocation 01234567", "3", term.Short(4 * time.Second)},
		{"box", "old.g[0]/t", "running", "n9, allocation abcdefgh", "1", "ended " + term.Short(2*time.Second) + " ago"},
		{"box", "up.g[0]/t", "released", "node2, allocation abcdefgh", "1", ""},
		{"engine", "can't be used: it is away", "", "", "", ""},
		{"empty", "none", "", "", "", ""},
	}, remoteRows(all, map[string]string{"n2": "node2"}))
}

func TestPrepare_RefusesARemoteHostInAContainer(t *testing.T) {
	l, _ := quiet(t)
	l.docker = func(context.Context) error { return nil }
	l.runtime, l.remote = agent.Container, remoteSim
	_, err := l.prepare(t.Context())
	test.ErrorContains(t, err, "a container has no other nodes, and no host that they reach by SSH")
	test.ErrorContains(t, err, "lab:down lab:up -runtime=host -remote")
}
