// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
)

// A start on a warm connection, with all that goes with it: Create, Prepare, Start, Watch, Remove.
func BenchmarkHost_Life(b *testing.B) {
	m := newMachine(b, os.Geteuid())
	h, ctx := m.host(), b.Context()
	s := shell("exit 0")
	for i := 0; b.Loop(); i++ {
		k := endpoint.Key{Job: b.Name(), Task: "web", Index: i}
		ref := endpoint.Ref{Name: k.Name("0123456789ab"), Epoch: 1}
		must.NoError(b, h.Create(ctx, &endpoint.Record{Name: ref.Name, Key: k}))
		must.NoError(b, h.Prepare(ctx, ref, s, nil))
		_, err := h.Start(ctx, ref, s)
		must.NoError(b, err)
		_, err = h.Watch(ctx, ref)
		must.NoError(b, err)
		must.NoError(b, h.Remove(ctx, ref))
	}
}

// read is all of an object's output.
func read(t testing.TB, h *sshhost.Host, name string) string {
	t.Helper()
	l, err := h.Logs(t.Context(), name, "stdout", endpoint.Place{}, 0)
	must.NoError(t, err)
	defer l.Close()
	var all []byte
	for {
		c, err := l.Next()
		if errors.Is(err, io.EOF) {
			return string(all)
		}
		must.NoError(t, err)
		all = append(all, c.Data...)
	}
}

// Output that is in the host's files already.
func BenchmarkHost_Logs(b *testing.B) {
	const size = 64 << 20
	m := newMachine(b, os.Geteuid())
	h, ctx := m.host(), b.Context()
	s := shell(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x | fold -w 99", size))
	k := endpoint.Key{Job: b.Name(), Task: "web"}
	ref := endpoint.Ref{Name: k.Name("0123456789ab"), Epoch: 1}
	must.NoError(b, h.Create(ctx, &endpoint.Record{Name: ref.Name, Key: k}))
	must.NoError(b, h.Prepare(ctx, ref, s, nil))
	_, err := h.Start(ctx, ref, s)
	must.NoError(b, err)
	_, err = h.Watch(ctx, ref)
	must.NoError(b, err)
	total := int64(0)
	for b.Loop() {
		total = int64(len(read(b, h, ref.Name)))
	}
	b.SetBytes(total)
	must.Greater(b, size, total)
	must.NoError(b, h.Remove(ctx, ref))
}
