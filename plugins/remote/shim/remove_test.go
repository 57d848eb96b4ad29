// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Between a look at the record and its removal another call may do the same, and a third one make the object anew.
func TestRemoveDamaged_LeavesWhatOthersAreAt(t *testing.T) {
	s, err := New(Config{StateDir: t.TempDir()})
	must.NoError(t, err)
	defer s.Close()
	r := &endpoint.Record{Name: "r", Key: endpoint.Key{Task: "web"}, Owner: endpoint.Owner{TaskID: "a/web/1"}}
	must.NoError(t, s.create(t.Context(), r, time.Minute))
	must.ErrorIs(t, s.removeDamaged(t.Context(), "r"), endpoint.ErrEpoch)

	l, err := s.lock(t.Context(), "r")
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(l.path, recordFile), nil, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	must.ErrorIs(t, s.removeDamaged(ctx, "r"), endpoint.ErrUnreachable)
	l.unlock()
	must.NoError(t, s.remove(t.Context(), endpoint.Ref{Name: "r"}))
	must.NoError(t, s.removeDamaged(t.Context(), "r"))
	_, err = s.get(t.Context(), "r")
	must.ErrorIs(t, err, endpoint.ErrGone)
}
