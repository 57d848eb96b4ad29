// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package simulatetest makes hosts for tests. Their TestMain calls simulate.Main first.
package simulatetest

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/simulate"
)

// New makes a host until the end of the test. It skips the test where the machine can't have one.
func New(t testing.TB, o simulate.Options) *simulate.Host {
	t.Helper()
	h, err := simulate.Start(t.Context(), filepath.Join(t.TempDir(), "host"), o)
	if errors.Is(err, simulate.ErrMissing) {
		t.Skip(err)
	}
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, h.Stop()) })
	return h
}
