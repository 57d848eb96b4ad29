// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package collector

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// TestMain runs the collector if the arguments name its role.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == Role {
		Main()
	}
	os.Exit(m.Run())
}

// A supervisor recognizes the collector of an earlier version by its identity and its reply to opHello, and replaces
// it. All other messages are exchanged within one build.
const (
	foundFile = "collector.json"
	helloFile = "hello.json"
)

func recordCollector(t *testing.T, dir string) {
	state, err := os.MkdirTemp("", "oc") // short, because the path of a socket is limited
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, os.RemoveAll(state)) })
	s := task.Store{Dir: state}
	c := NewClient(Config{Store: s, Argv0: "outrider-supervisor", Build: "old", OnEvent: func(Event) {},
		Forks: &sync.Mutex{}, OnStart: func(int) {}, OnEnd: func(int) {}, Log: t.Logf})
	_, err = c.wire.Connect(t.Context())
	must.NoError(t, err)
	for name, path := range map[string]string{foundFile: identityFile(s), helloFile: ""} {
		var b []byte
		if path != "" {
			b, err = os.ReadFile(path)
			must.NoError(t, err)
		} else {
			w, err := wire.Dial(Socket(s))
			must.NoError(t, err)
			must.NoError(t, w.Send(wire.Message[request]{Seq: 1, Body: request{Op: opHello}}))
			var m json.RawMessage
			must.NoError(t, w.Receive(&m))
			w.Shut()
			b = m
		}
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), append(b, '\n'), 0o644))
	}
	testsupport.RecordFields(t, dir, task.Identity{}, task.Output{}, Spec{}, request{}, reply{})
	c.End(t.Context())
}

// If a supervisor did not find the collector of an earlier release, that collector and a new one would both move
// output.
func TestClient_FindsTheCollectorOfEachRelease(t *testing.T) {
	testsupport.EachRelease(t, recordCollector, func(t *testing.T, dir string) {
		testsupport.KeepsFields(t, dir, task.Identity{}, task.Output{}, Spec{}, request{}, reply{})
		found, err := os.ReadFile(filepath.Join(dir, foundFile))
		must.NoError(t, err)
		s := task.Store{Dir: t.TempDir()}
		for _, b := range [][]byte{found, testsupport.LaterJSON(t, found)} {
			must.NoError(t, os.WriteFile(filepath.Join(s.Dir, "collector.json"), b, 0o600))
			id, err := readIdentity(s)
			must.NoError(t, err)
			test.Positive(t, id.PID)
		}
		hello, err := os.ReadFile(filepath.Join(dir, helloFile))
		must.NoError(t, err)
		for _, b := range [][]byte{hello, testsupport.LaterJSON(t, hello)} {
			var m wire.Message[reply]
			must.NoError(t, json.Unmarshal(b, &m))
			test.Eq(t, "old", m.Body.Build)
		}
		test.Eq(t, s.Dir+"/collector.sock", Socket(s), test.Sprint("the collector of a release is at another socket"))
	})
}
