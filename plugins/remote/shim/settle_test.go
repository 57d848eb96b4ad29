// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Of a start that the host's loss of power cut off there may be files without content.
func TestSettle_EndsAStartOfAnotherBoot(t *testing.T) {
	s, err := New(Config{StateDir: t.TempDir()})
	must.NoError(t, err)
	defer s.Close()
	r := &endpoint.Record{Name: "r", Key: endpoint.Key{Task: "web"}, Owner: endpoint.Owner{TaskID: "a/web/1"}}
	must.NoError(t, s.create(t.Context(), r, time.Minute))
	l, err := s.lock(t.Context(), "r")
	must.NoError(t, err)
	must.NoError(t, os.MkdirAll(s.store.TaskDir(l.o.TaskID), 0o700))
	must.NoError(t, os.WriteFile(filepath.Join(s.store.TaskDir(l.o.TaskID), "task.json"), nil, 0o600))
	must.Error(t, s.settle(t.Context(), l), must.Sprint("it may run"))
	l.o.Changed.Boot = "another"
	must.NoError(t, l.save())
	l.unlock()
	got, err := s.get(t.Context(), "r")
	must.NoError(t, err)
	must.Eq(t, endpoint.Exited, got.State)
	test.True(t, got.Exit.Lost)
	test.StrContains(t, got.Exit.Reason, "restarted")
}
