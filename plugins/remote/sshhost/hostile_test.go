// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
)

// answering is a host whose shim answers every call with this text.
func answering(t *testing.T, text string) *sshhost.Host {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	must.NoError(t, err)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, text)
	})}
	go func() { _ = s.Serve(&greeting{l}) }()
	h := sshhost.New(sshhost.Config{Lease: testLease, Dial: func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", l.Addr().String())
	}})
	t.Cleanup(func() {
		must.NoError(t, h.Close())
		must.NoError(t, s.Close())
	})
	return h
}

// greeting writes the banner on each connection.
type greeting struct{ net.Listener }

func (g *greeting) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err == nil {
		_, err = io.WriteString(conn, protocol.Banner)
	}
	return conn, err
}

// A host is less trusted than the node: what it answers must not end the plugin, which has other endpoints, too.
func TestHost_TakesNoListWithoutRecords(t *testing.T) {
	_, err := answering(t, `{"records":[null,{"name":"a"}]}`).List(t.Context())
	must.ErrorContains(t, err, "no record")
	all, err := answering(t, `{"records":[{"name":"a"}]}`).List(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, all)
}

func TestHost_TakesNoLongAnswer(t *testing.T) {
	allocated := func(f func() error, want string) {
		t.Helper()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := f()
		runtime.ReadMemStats(&after)
		must.ErrorContains(t, err, want)
		must.Less(t, 4<<20, after.TotalAlloc-before.TotalAlloc)
	}
	long := answering(t, `{"record":{"name":"`+strings.Repeat("a", 15<<20)+`"}}`)
	allocated(func() error { _, err := long.Get(t.Context(), "a"); return err }, "has more than 262144 bytes")
	ref := endpoint.Ref{Name: "a"}
	allocated(func() error { return long.Put(t.Context(), ref, strings.NewReader("")) }, "has more than 262144 bytes")

	var frame bytes.Buffer
	must.NoError(t, protocol.WriteFrame(&frame, protocol.FrameEnd, make([]byte, 15<<20)))
	end := answering(t, frame.String())
	allocated(func() error {
		l, err := end.Logs(t.Context(), "a", "stdout", endpoint.Place{}, 0)
		must.NoError(t, err)
		defer l.Close()
		_, err = l.Next()
		return err
	}, "is too long")
	allocated(func() error {
		_, err := end.Exec(t.Context(), ref, &endpoint.ExecOptions{Command: []string{"true"}})
		return err
	}, "is too long")
}

func TestHost_MakesLittleOfALongList(t *testing.T) {
	list := `{"records":[` + strings.Repeat("{},", 1<<20) + `{}]}`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := answering(t, list).List(t.Context())
	runtime.ReadMemStats(&after)
	must.ErrorContains(t, err, "more than 8192")
	must.Less(t, 100<<20, after.TotalAlloc-before.TotalAlloc)
}
